"""The launches of a case: which of them count, and their times by round.

The launches of all cases are grouped at once, as a DataFrame; comparing two cases is then plain
arithmetic on a few numbers each.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import pandas

from spbench.analysis.comparable import Setup, in_panels, setups_of
from spbench.analysis.intervals import LEAST_LAUNCHES, geometric_mean
from spbench.analysis.rows import LaunchRows, rows_of
from spbench.text import counted

SPEEDS_ALIKE = 0.05
"""Processors whose speeds differ by less count as equally fast."""


@dataclass(frozen=True, kw_only=True)
class Launches:
    """The launches of one case that are ok, by the round in which each ran."""

    ms: Mapping[str, float]
    """Milliseconds of a step, or of what one GPU's share computes, where they were measured."""
    noise: Mapping[str, str]
    """What disturbed the noisy launches."""
    setups: Mapping[str, Setup]
    """Hardware and libraries of each launch."""
    counting: Mapping[str, bool]
    """Whether a launch counts; see ``launches_that_count``."""
    gflop_per_s: Mapping[str, float]
    """Rates of one fixed product beside the launches: how fast processors were, where known."""

    def only(self, rounds: Collection[str]) -> "Launches":
        if all(name in rounds for name in self.setups):
            return self
        kept = {
            field.name: {name: x for name, x in getattr(self, field.name).items() if name in rounds}
            for field in fields(self)
        }
        return Launches(**kept)

    @cached_property
    def that_count(self) -> "Launches":
        return self.only([name for name, counts in self.counting.items() if counts])

    @property
    def first_noise(self) -> str:
        return next(iter(self.noise.values()), "")

    @cached_property
    def mean_ms(self) -> float | None:
        """The geometric mean of the times."""
        return geometric_mean([*self.ms.values()]) if self.ms else None


NONE = Launches(ms={}, noise={}, setups={}, counting={}, gflop_per_s={})


@dataclass(frozen=True, kw_only=True)
class CaseRows:
    """The rows of one case."""

    panel: str
    every: LaunchRows
    used: LaunchRows
    """The rows that figures are computed from."""
    launches: Launches


def cases_by(
    frame: pandas.DataFrame,
    by: Sequence[str],
    is_used: "pandas.Series[bool]",
    launches: Mapping[Any, Launches],
) -> dict[Any, CaseRows]:
    """The rows of each case, by the values of the columns ``by``; rows are numbered from 0."""
    columns, used = rows_of(frame).columns, is_used.tolist()
    cases = {}
    for case, places in frame.groupby(list(by)).indices.items():
        every = LaunchRows(columns, [*map(int, places)])
        cases[case] = CaseRows(
            panel=every.row(-1)["panel"],
            every=every,
            used=every.only(used[number] for number in every.numbers),
            launches=launches.get(case, NONE),
        )
    return cases


def launches_that_count(frame: pandas.DataFrame, by: Sequence[str]) -> "pandas.Series[bool]":
    """The quiet launches of each case if there are enough of them; else the noisy ones, too."""
    is_ok = frame["status"] == "ok"
    is_quiet = is_ok & (frame["noisy"] == "")
    quiet = is_quiet.groupby([frame[name] for name in by]).transform("sum")
    return is_quiet | (is_ok & (quiet < LEAST_LAUNCHES))


def launches_side_by_side(frame: pandas.DataFrame, by: Sequence[str]) -> "pandas.Series[bool]":
    """As ``launches_that_count``, where the last column of ``by`` is the strategy.

    Strategies with enough quiet launches count in the rounds that are quiet for all of them, if
    these are enough, too: then their ratios are those of their times, and drift cancels. With
    rounds 1 to 4 quiet for dsp, 2 to 5 for ring, and none for rsa, dsp and ring count in 2 to 4,
    and rsa counts in all of its rounds.
    """
    counts = launches_that_count(frame, by)
    case = [frame[name] for name in by]
    group = case[:-1]
    # Launches of cases whose launches that count are quiet, and enough: not rsa's.
    needs_noisy = (counts & (frame["noisy"] != "")).groupby(case).transform("any")
    has_enough = counts.groupby(case).transform("sum") >= LEAST_LAUNCHES
    of_quiet = counts & has_enough & ~needs_noisy
    # Those of them in rounds in which each such strategy has one. Launches that are masked are NaN,
    # which ``nunique`` leaves out.
    strategies = frame[by[-1]].where(of_quiet).groupby(group).transform("nunique")
    in_round = of_quiet.groupby([*group, frame["round"]]).transform("sum")
    is_shared = of_quiet & (in_round == strategies)
    # A case with enough shared rounds counts in these alone; with fewer, in all of its own.
    shares_enough = is_shared.groupby(case).transform("sum") >= LEAST_LAUNCHES
    only_in_shared = of_quiet & shares_enough
    return counts & (is_shared | ~only_in_shared)


def launches_by(
    frame: pandas.DataFrame, by: Sequence[str], counts: "pandas.Series[bool] | None" = None
) -> dict[Any, Launches]:
    """The launches of each case, by the values of the columns ``by``.

    ``counts``: the launches that count, if not those of ``launches_that_count``.
    """
    is_ok = frame["status"] == "ok"
    counts = launches_that_count(frame, by) if counts is None else counts
    counting = counts[is_ok].tolist()
    good = frame[is_ok]
    # Older rows have no round: nothing is known of what ran next to them.
    rounds = [name or f"row {row}" for row, name in good["round"].items()]
    times = good["step_ms"].where(good["kind"] != "one_gpu_share", good["compute_ms"]).tolist()
    noise, setups = good["noisy"].tolist(), setups_of(good)
    speeds = good["cpu_gflop_per_s"].tolist()
    return {
        case: Launches(
            ms={rounds[i]: times[i] for i in places if times[i] > 0},
            noise={rounds[i]: noise[i] for i in places if noise[i]},
            setups={rounds[i]: setups[i] for i in places},
            counting={rounds[i]: counting[i] for i in places},
            gflop_per_s={rounds[i]: speeds[i] for i in places if speeds[i] > 0},
        )
        for case, places in good.groupby(list(by), sort=False).indices.items()
    }


def product_ratio(before: Launches, after: Launches) -> float | None:
    """Time of a fixed product on the processors after, over that before; None: not known."""
    old, new = ([*launches.gflop_per_s.values()] for launches in (before, after))
    return geometric_mean(old) / geometric_mean(new) if old and new else None


def on_processors(slower: float | None) -> str:
    """How much slower or faster the processors of launches were, as a phrase; blank if not."""
    if slower is None or 1 / (1 + SPEEDS_ALIKE) <= slower <= 1 + SPEEDS_ALIKE:
        return ""
    return f"on processors {f'{slower:.2f}x slower' if slower > 1 else f'{1 / slower:.2f}x faster'}"


def launches_in_words(needs: int | None, counts: tuple[int, int], *, is_paired: bool) -> str:
    """The numbers of launches before and after, and the number that a verdict takes."""
    enough = f"about {needs:,}{'' if is_paired else ' of each'}" if needs else "more than 1,000"
    return f"{counts_in_words(counts)}; a verdict takes {enough}"


def counts_in_words(counts: tuple[int, int]) -> str:
    """The numbers of launches before and after."""
    before, after = counts
    return f"{counted(after, 'launch')} {'of each' if before == after else f'against {before}'}"


Cases = Mapping[tuple[int, int, int], CaseRows]
"""The rows of each case, by the numbers of its panel, its ranks and its strategy."""
CASE = ["panel_number", "world_size", "strategy_number"]


def cases_of(frame: pandas.DataFrame) -> Cases:
    """The cases of all strategies, launches side by side."""
    number = pandas.factorize(frame["strategy"])[0]
    numbered = in_panels(frame).assign(strategy_number=number).reset_index(drop=True)
    counts = launches_side_by_side(numbered, CASE)
    return cases_by(numbered, CASE, counts, launches_by(numbered, CASE, counts=counts))
