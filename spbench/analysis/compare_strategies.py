"""The strategies of a run beside each other, case by case.

A launch is the unit: a figure is the median over the launches of a case. Strategies of the same
workload and ranks are compared round by round, each with the reference and with the fastest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any, NamedTuple

import pandas

from spbench.analysis.comparable import in_panels
from spbench.analysis.compare import MARGIN, Comparison, compare_times
from spbench.analysis.findings import failed_launches
from spbench.analysis.launches import (
    NONE,
    Figure,
    Launches,
    figure,
    launches_by,
    launches_that_count,
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


class Row(NamedTuple):
    """One launch."""

    status: str
    noisy: str
    panel: str
    counts: bool
    record: Record | None
    """The whole row, where a line needs more of it."""


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """One strategy's rows of a panel, on one number of ranks."""

    rows: Sequence[Row]
    launches: Launches
    step_ms: Figure | None
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
    counting = frame[counts]
    medians = counting.groupby(CASE)[MEDIANS].median().astype(object)
    by_case = medians.where(medians.notna(), None).to_dict("index")
    step_ms = frame["step_ms"].tolist()
    launches = launches_by(frame, CASE)
    # Of launches that are ok only the last that counts has to be known in full.
    is_shown = (frame["status"] != "ok") | frame.index.isin(counting.groupby(CASE).tail(1).index)
    records = dict(zip(frame.index[is_shown], records_of(frame[is_shown]), strict=True))
    columns = (frame[name] for name in ("status", "noisy", "panel"))
    shown = map(records.get, range(len(frame)))
    rows = [Row(*row) for row in zip(*columns, counts, shown, strict=True)]
    places: dict[Any, Any] = frame.groupby(CASE).indices
    return {
        case: Strategy(
            rows=[rows[i] for i in at],
            launches=launches.get(case, NONE),
            step_ms=figure([step_ms[i] for i in at if counts[i] and step_ms[i] == step_ms[i]]),
            medians=by_case.get(case, dict.fromkeys(MEDIANS)),
        )
        for case, at in places.items()
    }


def _lines(group: Mapping[str, Strategy], reference: str, margin: float) -> list[Line]:
    def against(base: str, name: str) -> Comparison | None:
        launches = group[base].launches if base in group else NONE
        return compare_times(launches, group[name].launches, margin)

    to_reference = {name: against(reference, name) for name in group}
    fastest = _fastest(group, to_reference)
    return [
        _line(
            strategy,
            reference,
            to_reference[name],
            against(fastest, name) if name != fastest else None,
        )
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
    rows = strategy.rows
    good = [row for row in rows if row.counts]
    first = good[-1].record if good else _cause(rows)
    assert first is not None
    wrong = [row.record for row in rows if row.record and row.status == "wrong_result"]
    proved = max(wrong, key=lambda one: one.gate_error or 0.0, default=first)
    passed = "passed" if proved.tolerance is not None else "not run"
    return Line(
        workload=first.workload,
        panel=rows[-1].panel,
        kind=first.kind,
        ranks=first.world_size,
        strategy=first.strategy,
        launches=len(good),
        status=first.status,
        reason=_reason(rows, good),
        step_ms=strategy.step_ms,
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


def _cause(rows: Sequence[Row]) -> Record:
    """Of launches without figures a wrong one, else the last that was tried: others were skipped
    because of it."""
    failed = [row.record for row in rows if row.record and row.status != "ok"]
    wrong = [record for record in failed if record.status == "wrong_result"]
    tried = [record for record in wrong or failed if record.status != "skipped"]
    return (tried or failed)[-1]


def _reason(rows: Sequence[Row], good: Sequence[Row]) -> str:
    """Why there are no figures, or that they are not of all launches, or of noisy ones."""
    if not good:
        return _cause(rows).reason
    reasons = []
    statuses = [row.status for row in rows]
    if any(status != "ok" for status in statuses):
        worst = _cause(rows)
        reasons.append(f"{failed_launches(worst.status, statuses)}. {worst.reason}")
    noisy = [row.noisy for row in rows if row.status == "ok" and row.noisy]
    if noisy:
        is_left_out = not any(row.noisy for row in good)
        effect = "left out" if is_left_out else "so the time is unreliable"
        reasons.append(f"{len(noisy)} of {len(rows)} launches noisy, {effect}: {noisy[-1]}")
    return "; ".join(reasons)
