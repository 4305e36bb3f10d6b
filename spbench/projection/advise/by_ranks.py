"""The answer on several numbers of ranks: which is the fastest, which gives the most per device,
and what each step from one number to the next is worth.

Two numbers of ranks are compared draw by draw, as two strategies are: a rate that is off is off for
both, so that it is known better how much faster 16 ranks are than how fast they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any, final

import numpy as np

from spbench.projection.advise.candidates import decisive_command
from spbench.projection.advise.measurements import (
    Measurement,
    measured_data,
    measurements,
    what_decides,
)
from spbench.projection.advise.project import Projection
from spbench.projection.advise.published import comparison_text
from spbench.projection.advise.recommend import (
    SHARED,
    Recommendation,
    as_data,
    plan_name,
    plan_row,
    plan_table,
    settings_of,
    title,
    which_measurement,
    which_run,
)
from spbench.projection.costmodel.step_time import Mode
from spbench.report import tables, units
from spbench.report.fit_width import fewer
from spbench.results.record import SURE
from spbench.text import counted

COLUMNS = (
    *("ranks", "strategy", *SHARED, "step ms", "90 % interval", "samples/s", "a device"),
    "memory GB",
)


@final
@dataclass(frozen=True, kw_only=True)
class More:
    """What more ranks are worth beside fewer."""

    ranks: tuple[int, int]
    speedup: float
    """Time of a step on the fewer over that on the more."""
    speedup_low: float
    speedup_high: float
    sure: float
    """Share of draws in which the more are faster."""
    per_device: float
    """Samples a second of a device of the more, over those of a device of the fewer."""
    measurements: Sequence[Measurement]
    """What would decide, where it is open which is faster; winners are the plans on these ranks."""

    @property
    def is_open(self) -> bool:
        """Whether neither is shown to be faster."""
        return 1 - SURE < self.sure < SURE


def compared(advised: Sequence[Recommendation], mode: Mode) -> list[More]:
    """Each number of ranks beside the next, rising; ``mode``: what their costs are of."""
    rising = sorted(advised, key=lambda advice: advice.best.ranks)
    return [_more(few.best, many.best, mode) for few, many in pairwise(rising)]


def _more(few: Projection, many: Projection, mode: Mode) -> More:
    ratios = few.took.draws / many.took.draws
    low, high = np.percentile(ratios, [5.0, 95.0])
    speedup = few.took.step_s / many.took.step_s
    more = More(
        ranks=(few.ranks, many.ranks),
        speedup=speedup,
        speedup_low=float(low),
        speedup_high=float(high),
        sure=float(np.mean(ratios > 1)),
        per_device=speedup * few.ranks / many.ranks,
        measurements=(),
    )
    # Where each number of ranks was timed by itself, no constant is of both.
    if not more.is_open or few.cluster.on_ranks:
        return more
    named = [replace(best, strategy=f"the plan on {best.ranks} ranks") for best in (few, many)]
    named.sort(key=lambda best: best.took.step_s)
    return replace(more, measurements=measurements(named, few.cluster, mode))


def fastest(advised: Sequence[Recommendation]) -> Recommendation:
    """The answer on the number of ranks with the shortest step."""
    return min(advised, key=lambda advice: advice.best.took.step_s)


def thriftiest(advised: Sequence[Recommendation]) -> Recommendation:
    """The answer on the number of ranks with the most samples a second of a device."""
    return min(advised, key=lambda advice: advice.best.took.step_s * advice.best.ranks)


def answer(advised: Sequence[Recommendation]) -> str:
    """One sentence of 35 words at most: which number of ranks is the fastest, and which gives the
    most per device."""
    quick, thrifty = fastest(advised).best, thriftiest(advised).best
    each = f"{_per_device(thrifty):.3g} samples/s"
    where = f"for {quick.workload.name.split()[0]} on {quick.cluster.name}"
    first = (
        f"{quick.strategy} on {counted(quick.ranks, 'rank')} has the shortest projected step "
        f"{where}, {units.milliseconds(1e3 * quick.took.step_s)} ms"
    )
    if quick is thrifty:
        return f"{first}, and gives the most per device, {each}"
    return f"{first}; {thrifty.strategy} on {thrifty.ranks} gives the most per device, {each}"


def _per_device(best: Projection) -> float:
    return float(best.data["samples_per_s"]) / best.ranks


def show_counts(
    advised: Sequence[Recommendation], why_not: Mapping[int, str], asked: Sequence[str], mode: Mode
) -> None:
    """Prints the answer, the fastest on each number of ranks, what more ranks are worth, and what
    would decide.

    Parameters
    ----------
    advised
        The answer on each number of ranks that has one.
    why_not
        Why others have none.
    asked
        Words that name the workload to ``spbench run``.
    mode
        How the model runs.
    """
    out = tables.console()
    more = compared(advised, mode)
    tables.say(out, answer(advised), *(_worth(each) for each in more))
    tables.say(out, f"the fastest on each number of ranks; {title(advised[0])}")
    rows = []
    for advice in advised:
        best = advice.best
        strategy, zero, again, step, interval, _, samples, *_, held = plan_row(best, best)
        a_device = f"{_per_device(best):.3g}"
        cells = strategy, zero, again, step, interval, samples, a_device, held
        rows.append([str(best.ranks), *cells])
    tables.show_fitting(out, fewer(plan_table(COLUMNS, rows), ("a device", "memory GB")))
    for advice in advised:
        measured = which_measurement(advice, asked) if advice.alike else ()
        tables.say(out, _of_count(advice), *measured, *which_run(advice, asked))
    for each in more:
        tables.say(out, *_open_between(each, advised, asked))
    compared_with = dict.fromkeys(comparison_text(advice.best) for advice in advised)
    tables.say(out, *filter(None, compared_with))
    for count, why in why_not.items():
        tables.say(out, f"{counted(count, 'rank')}: {why}")


def _worth(more: More) -> str:
    """'16 ranks in place of 8: 1.75 times as fast (1.53 to 1.86), faster in 100 % of draws, with
    88 % of the throughput per device'."""
    few, many = more.ranks
    each = units.percent(more.per_device)
    return (
        f"{counted(many, 'rank')} in place of {few}: {more.speedup:.2f} times as fast "
        f"({more.speedup_low:.2f} to {more.speedup_high:.2f}), faster in "
        f"{units.percent(more.sure)} of draws, with {each} of the throughput per device"
    )


def _of_count(advice: Recommendation) -> str:
    """Whether a strategy is shown to be the fastest on this number of ranks."""
    ranks, sure = counted(advice.best.ranks, "rank"), units.percent(advice.sure)
    if not advice.others:
        return f"{ranks}: {plan_name(advice)} is the only strategy that can be projected"
    if not advice.alike:
        return f"{ranks}: {plan_name(advice)} is shown to be the fastest, in {sure} of draws"
    return (
        f"{ranks}: none is shown to be the fastest; {plan_name(advice)} is in {sure} of draws, and "
        f"{counted(len(advice.alike), 'other')} may be as fast"
    )


def _open_between(
    more: More, advised: Sequence[Recommendation], asked: Sequence[str]
) -> Iterator[str]:
    """The measurement and the runs that decide between two numbers of ranks of which none is shown
    to be faster."""
    if not more.is_open:
        return
    few, many = more.ranks
    yield f"whether {many} ranks are faster than {few} is open"
    if more.measurements:
        yield from what_decides(more.measurements, asked)
    yield f"what would decide: {_runs(more, advised, asked)}"


def _runs(more: More, advised: Sequence[Recommendation], asked: Sequence[str]) -> str:
    """The run of the best on each of the two numbers of ranks."""
    return "; ".join(
        decisive_command(
            [advice.best.strategy],
            advice.best.ranks,
            advice.best.cluster,
            asked,
            settings_of(advice),
        )
        for advice in advised
        if advice.best.ranks in more.ranks
    )


def counts_as_data(
    advised: Sequence[Recommendation], why_not: Mapping[int, str], asked: Sequence[str], mode: Mode
) -> dict[str, Any]:
    """The answer on several numbers of ranks for ``--json``; as ``show_counts`` takes it."""
    quick, thrifty = fastest(advised).best, thriftiest(advised).best
    return {
        "kind": "projected",
        "workload": quick.workload.name,
        "cluster": quick.cluster.name,
        "answer": answer(advised),
        "fastest": {"ranks": quick.ranks, "strategy": quick.strategy},
        "most_per_device": {
            "ranks": thrifty.ranks,
            "strategy": thrifty.strategy,
            "samples_per_s": _per_device(thrifty),
        },
        "more_ranks": [
            asdict(each)
            | {
                "measurements": measured_data(each.measurements, asked),
                "decides": _runs(each, advised, asked) if each.is_open else None,
            }
            for each in compared(advised, mode)
        ],
        "by_ranks": [as_data(advice, asked) for advice in advised],
        "cannot": {str(count): why for count, why in why_not.items()},
    }
