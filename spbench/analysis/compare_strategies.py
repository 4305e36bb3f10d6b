"""The strategies of a run beside each other, case by case.

A launch is the unit: a figure is the median over the launches of a case. Strategies of the same
workload and ranks are compared round by round, each with the reference and with the fastest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

import pandas

from spbench.analysis.comparable import in_panels
from spbench.analysis.compare import MARGIN, Comparison, compare_times
from spbench.analysis.launches import (
    NONE,
    Figure,
    Launches,
    cause_of,
    figure,
    launches_by,
    launches_that_count,
    why_incomplete,
)
from spbench.results.reading import records_of
from spbench.results.record import Record
from spbench.workload.traffic import PHASES

CASE = ["panel_number", "world_size", "strategy_number"]
MEDIANS = ["tokens_per_s", "compute_ms", "exposed_comm_ms", "peak_allocated_bytes"]


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
    """That the figures are made of."""
    status: str
    reason: str
    """Why there are no figures, or that they are not of all launches."""
    step_ms: Figure | None
    reference: str
    """The strategy that ``to_reference`` is about."""
    to_reference: Comparison | None
    """This step time over the reference's."""
    to_fastest: Comparison | None
    """This step time over that of the strategy with the least; None for that one itself."""
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
    """passed, failed (in any launch, whose errors then stand above), or not run."""

    @property
    def speedup(self) -> float | None:
        """The reference's step time over this one's: above 1 is faster than the reference."""
        ratio = self.to_reference.ratio if self.to_reference else None
        return 1 / ratio if ratio and self.kind == "measured" else None

    @property
    def time_ms(self) -> float | None:
        """Of the step, or of a share's computation."""
        if self.kind == "one_gpu_share":
            return self.compute_ms
        return self.step_ms.median if self.step_ms else None

    def as_data(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"speedup": self.speedup}


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """One strategy's launches in a panel, on one number of ranks."""

    panel: str
    every: Sequence[Record]
    counting: Sequence[Record]
    launches: Launches
    medians: Mapping[str, float | None]


def compare_strategies(
    frame: pandas.DataFrame, reference: str | None = None, margin: float = MARGIN
) -> list[Line]:
    """A line for each case; the reference is the first strategy that ran unless named.

    Panels and strategies stand in the order of the run, numbers of ranks ascend.

    Raises ValueError if no case has the strategy that is named as the reference.
    """
    names = frame["strategy"].unique().tolist()
    if reference is not None and reference not in names:
        known = ", ".join(names)
        raise ValueError(f"no case of strategy {reference!r} to compare with; there are {known}")
    reference = reference or next(iter(frame.loc[frame["status"] != "skipped", "strategy"]), "")
    number = pandas.factorize(frame["strategy"])[0]
    cases = _cases(in_panels(frame).assign(strategy_number=number).reset_index(drop=True))
    lines = []
    for _, of_group in groupby(sorted(cases), key=lambda case: case[:2]):
        group = {names[case[2]]: cases[case] for case in of_group}
        lines += _lines(group, reference, margin)
    return lines


def _cases(frame: pandas.DataFrame) -> dict[tuple[int, ...], Strategy]:
    """By the number of the panel, the number of ranks and the number of the strategy."""
    counts = launches_that_count(frame, CASE)
    medians = frame[counts].groupby(CASE)[MEDIANS].median().astype(object)
    by_case = medians.where(medians.notna(), None).to_dict("index")
    launches = launches_by(frame, CASE)
    records, panels = records_of(frame), frame["panel"].tolist()
    rows_by_case: dict[Any, Any] = frame.groupby(CASE).indices
    return {
        case: Strategy(
            panel=panels[rows[-1]],
            every=[records[row] for row in rows],
            counting=[records[row] for row in rows if counts[row]],
            launches=launches.get(case, NONE),
            medians=by_case.get(case, dict.fromkeys(MEDIANS)),
        )
        for case, rows in rows_by_case.items()
    }


def _lines(group: Mapping[str, Strategy], reference: str, margin: float) -> list[Line]:
    def against(base: str, name: str) -> Comparison | None:
        launches = group[base].launches if base in group else NONE
        return compare_times(launches, group[name].launches, margin)

    to_reference = {name: against(reference, name) for name in group}
    fastest = _fastest(group, to_reference)
    to_fastest = {name: against(fastest, name) for name in group if name != fastest}
    return [
        _line(strategy, reference, to_reference[name], to_fastest.get(name))
        for name, strategy in group.items()
    ]


def _fastest(group: Mapping[str, Strategy], to_reference: Mapping[str, Comparison | None]) -> str:
    """By the ratios to the reference, which drift does not touch; else by the times."""
    ratios = {name: one.ratio for name, one in to_reference.items() if one and one.ratio}
    medians = {name: one.launches.that_count().median_ms for name, one in group.items()}
    timed = {name: ms for name, ms in medians.items() if ms is not None}
    known = ratios if len(ratios) == len(timed) else timed
    return min(known, key=known.__getitem__, default="")


def _line(
    strategy: Strategy,
    reference: str,
    to_reference: Comparison | None,
    to_fastest: Comparison | None,
) -> Line:
    good = strategy.counting
    first = (good or [cause_of(strategy.every)])[-1]
    wrong = [record for record in strategy.every if record.status == "wrong_result"]
    proved = max(wrong, key=lambda one: one.gate_error or 0.0, default=first)
    passed = "passed" if proved.tolerance is not None else "not run"
    return Line(
        workload=first.workload,
        panel=strategy.panel,
        kind=first.kind,
        ranks=first.world_size,
        strategy=first.strategy,
        launches=len(good),
        status=first.status,
        reason=why_incomplete(strategy.every, good),
        step_ms=figure([ms for record in good if (ms := record.step_ms) is not None]),
        reference=reference,
        to_reference=to_reference,
        to_fastest=to_fastest,
        **strategy.medians,
        sent_bytes={phase: getattr(first, f"sent_bytes_{phase}") for phase in PHASES},
        predicted_bytes={phase: getattr(first, f"predicted_bytes_{phase}") for phase in PHASES},
        output_error=proved.output_error,
        gradient_error=proved.gradient_error,
        tolerance=proved.tolerance,
        gate="failed" if wrong else passed,
    )
