"""The strategies of a run side by side, case by case, and who of them is fastest.

A launch is the unit: a time is the geometric mean over the launches of a case that count, and a
ratio that of two such times. Strategies of the same workload and ranks are compared round by
round, each with the reference and with the fastest.

Whatever names or shows a winner asks ``ranking_of``, so that no figure ranks what a sentence
refuses to. Not ranked are shares of one GPU, which compute and send nothing; times of too few
undisturbed launches; and what is projected not to fit into memory.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import Any

import pandas

from spbench.analysis.case_figures import (
    Figure,
    cause_of,
    gate_error,
    split_of,
    step_figure,
    why_incomplete,
    wrong_besides_gate,
)
from spbench.analysis.compare import MARGIN, Comparison, compare_side_by_side
from spbench.analysis.intervals import geometric_mean
from spbench.analysis.launches import NONE, CaseRows, Cases, cases_of
from spbench.analysis.rows import LaunchRows
from spbench.results.record import SURE, USABLE
from spbench.workload.traffic import PHASES


@dataclass(frozen=True, kw_only=True)
class Line:
    """One strategy at one number of ranks. None: not measured."""

    workload: str
    panel: str
    """Workload, shape and mode in words: lines of one panel may be compared."""
    kind: str
    ranks: int
    strategy: str
    launches: int
    """Launches that the figures are computed from; none of a projected case."""
    status: str
    reason: str
    """Why there are no figures, or which launches they leave out."""
    is_noisy: bool
    """Whether noisy launches count, since too few were quiet: the times are unreliable."""
    step_ms: Figure | None
    only_launch_ms: tuple[float, float] | None
    """Tenth and ninetieth percentile of the steps, where there is one launch: their spread is no
    interval."""
    reference: str
    """The strategy that speed-ups are relative to."""
    to_reference: Comparison | None
    """This step time over the reference's; None of a share of one GPU, which has no step."""
    to_fastest: Comparison | None
    """This step time over the lowest of a strategy that can be ranked; None for that itself."""
    tokens_per_s: float | None
    compute_ms: float | None
    exposed_comm_ms: float | None
    peak_allocated_bytes: float | None
    sent_bytes: dict[str, int | None]
    predicted_bytes: dict[str, int | None]
    output_error: float | None
    gradient_error: float | None
    tolerance: float | None
    gate: str
    """passed, failed (in any launch: the errors above are that launch's), or not run."""
    wrong: str = ""
    """What was wrong in a launch whose gate passed: bytes, or the timed step."""
    gated_on: str = ""
    """The reduced workload that the gate compared; blank: it was the whole one."""
    agreed_with: str = ""
    """What the whole workload's step was compared with."""
    mfu: float | None = None
    exposed_gb_per_s: float | None = None
    bubble_ms: float | None = None
    """Bytes of a step over the time that it waits, where that is long enough to tell."""
    memory_limit_bytes: int | None = None
    """Memory of one device, where the row knows it."""
    slower_share: float | None = None
    """Share of the draws in which a projected case is slower than the fastest."""

    @property
    def speedup(self) -> float | None:
        """The reference's step time over this line's: above 1 is faster than the reference."""
        ratio = self.to_reference.ratio if self.to_reference else None
        return 1 / ratio if ratio else None

    @property
    def is_share(self) -> bool:
        """Whether one GPU computed a rank's share, without messages: no step, and never ranked."""
        return self.kind == "one_gpu_share"

    @property
    def time_ms(self) -> float | None:
        """Milliseconds of the step; None of a share of one GPU, which has none."""
        return self.step_ms.mean if self.step_ms and not self.is_share else None

    @property
    def fits(self) -> bool:
        """Whether it fits into a device's memory, as far as both are known."""
        limit, peak = self.memory_limit_bytes, self.peak_allocated_bytes
        if self.kind != "projected" or not limit or peak is None:
            return True
        return peak <= USABLE * limit

    @property
    def is_slower(self) -> bool:
        """Whether it is told apart from the fastest: by its launches, or by the draws."""
        if self.kind == "projected":
            return (self.slower_share or 0.0) >= SURE
        return self.to_fastest is not None and self.to_fastest.verdict == "slower"

    def as_data(self) -> dict[str, Any]:
        """The line as JSON has it."""
        return asdict(self) | {"speedup": self.speedup}


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """The strategies of one panel on one number of ranks, by whether they can be ranked."""

    lowest: Line | None
    """The lowest time of those that can be ranked; None where none can be."""
    others: Sequence[Line]
    """The others that can be ranked, by their times."""
    noisy: Sequence[Line]
    """Those with a time of noisy launches, since too few were quiet: one may be the fastest."""
    too_large: Sequence[Line]
    """Those with a time that no device has the memory for."""
    shares: Sequence[Line]
    """Those of which one GPU computed a rank's share, without messages: that is no step."""

    @property
    def fastest(self) -> Line | None:
        """The strategy that is shown to be faster than each other with a time; None: none is."""
        if self.lowest is None or self.noisy:
            return None
        # Each other may be slower in nine of ten draws, and one of them be faster in every fifth.
        beaten = self.lowest.slower_share if self.lowest.kind == "projected" else None
        is_shown = all(line.is_slower for line in self.others) and 1 - (beaten or 0.0) >= SURE
        return self.lowest if is_shown else None

    @property
    def timed(self) -> Sequence[Line]:
        """All that have the time of a step that fits into memory, disturbed or not."""
        return [*([self.lowest] if self.lowest else []), *self.others, *self.noisy]


def ranking_of(lines: Sequence[Line]) -> Ranking:
    """``lines``: of one panel and number of ranks, whether or not they have a time."""
    timed = [line for line in lines if line.time_ms is not None]
    fitting = [line for line in timed if line.fits]
    quiet = sorted(
        (line for line in fitting if not line.is_noisy), key=lambda line: line.time_ms or 0.0
    )
    return Ranking(
        lowest=quiet[0] if quiet else None,
        others=quiet[1:],
        noisy=[line for line in fitting if line.is_noisy],
        too_large=[line for line in timed if not line.fits],
        shares=[line for line in lines if line.is_share and line.compute_ms is not None],
    )


def compare_strategies(
    frame: pandas.DataFrame,
    reference: str | None = None,
    margin: float = MARGIN,
    cases: Cases | None = None,
) -> list[Line]:
    """A line for each case; the default reference is the first strategy that ran.

    ``cases``: those of the frame, where the caller has them.

    Panels and strategies are in the order of the run, numbers of ranks ascend. Raises ValueError
    if no case has the strategy that is named as the reference.
    """
    names = frame["strategy"].unique().tolist()
    if reference is not None and reference not in names:
        there = ", ".join(names)
        raise ValueError(f"no case of strategy {reference!r} to compare with; there are {there}")
    reference = reference or next(iter(frame.loc[frame["status"] != "skipped", "strategy"]), "")
    cases = cases_of(frame) if cases is None else cases
    lines = []
    for _, of_group in groupby(sorted(cases), key=lambda case: case[:2]):
        lines += _lines({names[case[2]]: cases[case] for case in of_group}, reference, margin)
    return lines


def _lines(group: Mapping[str, CaseRows], reference: str, margin: float) -> list[Line]:
    """The lines of one panel on one number of ranks, with their ratios; shares have none."""
    alone = {name: _line(case, reference) for name, case in group.items()}
    lowest = _lowest([*alone.values()])

    def against(base: str, name: str) -> Comparison | None:
        if alone[name].is_share:
            return None
        launches = group[base].launches if base in group else NONE
        return compare_side_by_side(launches, group[name].launches, margin)

    to_reference = {name: against(reference, name) for name in group}
    to_lowest = to_reference if lowest == reference else {n: against(lowest, n) for n in group}
    return [
        replace(
            line,
            to_reference=to_reference[name],
            to_fastest=None if name == lowest else to_lowest[name],
        )
        for name, line in alone.items()
    ]


def _lowest(lines: Sequence[Line]) -> str:
    """The strategy that the others are compared with: the lowest time that can be ranked; if none
    can be, the lowest of all, so that ratios are known though no verdict is."""
    ranking = ranking_of(lines)
    unranked = sorted([*ranking.noisy, *ranking.too_large], key=lambda line: line.time_ms or 0.0)
    candidates = [ranking.lowest] if ranking.lowest else unranked
    return candidates[0].strategy if candidates else ""


def _line(case: CaseRows, reference: str) -> Line:
    """The case by itself, without its ratios to others."""
    good = case.used
    first = good.row(-1) if good else cause_of(case.every)
    wrong = [*case.every.having("status", "wrong_result")]
    proved = max(wrong, key=lambda row: gate_error(row) or 0.0, default=first)
    besides = wrong_besides_gate(proved) if wrong else ""
    passed = "passed" if proved["tolerance"] is not None else "not run"
    step = step_figure(good)
    compute_ms, exposed_ms = split_of(step.mean if step else None, good)
    peaks = good.measured("peak_allocated_bytes")
    kept = ("workload", "kind", "strategy", "status", "agreed_with")
    return Line(
        **{name: first[name] for name in (*kept, "memory_limit_bytes", "slower_share")},
        **{name: proved[name] for name in ("output_error", "gradient_error", "tolerance")},
        panel=case.panel,
        ranks=first["world_size"],
        launches=0 if first["kind"] == "projected" else len(good),
        reason=why_incomplete(case.every, good),
        is_noisy=any(good["noisy"]),
        step_ms=step,
        only_launch_ms=_scatter(good),
        reference=reference,
        to_reference=None,
        to_fastest=None,
        tokens_per_s=_mean(good.measured("tokens_per_s")),
        mfu=_mean(good.measured("mfu")),
        exposed_gb_per_s=_mean(good.measured("exposed_gb_per_s")),
        bubble_ms=_mean(good.measured("bubble_ms")),
        compute_ms=compute_ms,
        exposed_comm_ms=exposed_ms,
        peak_allocated_bytes=statistics.median(peaks) if peaks else None,
        sent_bytes={phase: first[f"sent_bytes_{phase}"] for phase in PHASES},
        predicted_bytes={phase: first[f"predicted_bytes_{phase}"] for phase in PHASES},
        gate="failed" if wrong and not besides else passed,
        wrong=besides,
        gated_on="" if first["gated_on"] == first["workload"] else first["gated_on"],
    )


def _mean(values: Sequence[float]) -> float | None:
    return geometric_mean(values) if values else None


def _scatter(rows: LaunchRows) -> tuple[float, float] | None:
    """Tenth and ninetieth percentile of the steps of a single launch."""
    ends = [(row["step_ms_p10"], row["step_ms_p90"]) for row in rows]
    if len(ends) != 1 or None in ends[0]:
        return None
    return ends[0]
