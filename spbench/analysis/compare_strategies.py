"""The strategies of a run beside each other, case by case.

A launch is the unit: a figure is the median over the launches of a case. Strategies of the same
workload and ranks are compared round by round, each with the reference and with the fastest.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from spbench.analysis.comparable import PanelKey, panel_key, panel_titles
from spbench.analysis.compare import MARGIN, Comparison, compare_times, launches_that_count, times
from spbench.analysis.findings import failed_launches
from spbench.analysis.summary import Figure, figure, median
from spbench.results.record import Record
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


def compare_strategies(
    records: Iterable[Record], reference: str | None = None, margin: float = MARGIN
) -> list[Line]:
    """A line for each case; the reference is the first strategy that ran unless named.

    Panels and strategies stand as they came, numbers of ranks ascend.

    Raises ValueError if no case has the strategy that is named as the reference.
    """
    groups: dict[PanelKey, dict[str, list[Record]]] = {}
    ran: list[str] = []
    order: dict[str, None] = {}
    for record in records:
        ran += [record.strategy] if record.status != "skipped" else []
        order[record.strategy] = None
        groups.setdefault(panel_key(record), {}).setdefault(record.strategy, []).append(record)
    if reference is not None and reference not in order:
        known = ", ".join(order)
        raise ValueError(f"no case of strategy {reference!r} to compare with; there are {known}")
    chosen = reference or next(iter(ran), "")
    said = panel_titles(found[-1] for group in groups.values() for found in group.values())
    panels = list(dict.fromkeys(group[:-1] for group in groups))
    ordered = sorted(groups, key=lambda group: (panels.index(group[:-1]), group[-1]))
    return [
        line
        for group in ordered
        for line in _lines(groups[group], order, chosen, said[group], margin)
    ]


def _lines(
    cases: Mapping[str, Sequence[Record]],
    order: Iterable[str],
    reference: str,
    panel: str,
    margin: float,
) -> list[Line]:
    """Of one group, in the run's order of strategies."""

    def against(base: str, name: str) -> Comparison | None:
        return compare_times(cases.get(base, []), cases[name], margin)

    to_reference = {name: against(reference, name) for name in cases}
    fastest = _fastest(cases, to_reference)
    return [
        _line(
            cases[name],
            panel,
            reference,
            to_reference[name],
            against(fastest, name) if name != fastest else None,
        )
        for name in order
        if name in cases
    ]


def _fastest(
    cases: Mapping[str, Sequence[Record]], to_reference: Mapping[str, Comparison | None]
) -> str:
    """By the ratios to the reference, which drift does not touch; else by the times."""
    ratios = {name: one.ratio for name, one in to_reference.items() if one and one.ratio}
    medians = {name: _time(launches_that_count(found)) for name, found in cases.items()}
    timed = {name: ms for name, ms in medians.items() if ms is not None}
    known = ratios if len(ratios) == len(timed) else timed
    return min(known, key=known.__getitem__, default="")


def _line(
    records: Sequence[Record],
    panel: str,
    reference: str,
    to_reference: Comparison | None,
    to_fastest: Comparison | None,
) -> Line:
    good = launches_that_count(records)
    first = (good or [_cause(records)])[-1]
    wrong = [record for record in records if record.status == "wrong_result"]
    proved = max(wrong, key=lambda one: one.gate_error or 0.0, default=first)
    passed = "passed" if proved.tolerance is not None else "not run"
    return Line(
        workload=first.workload,
        panel=panel,
        kind=first.kind,
        ranks=first.world_size,
        strategy=first.strategy,
        launches=len(good),
        status=first.status,
        reason=_reason(records, good),
        step_ms=figure(good, "step_ms"),
        reference=reference,
        to_reference=to_reference,
        to_fastest=to_fastest,
        tokens_per_s=median(good, "tokens_per_s"),
        compute_ms=median(good, "compute_ms"),
        exposed_comm_ms=median(good, "exposed_comm_ms"),
        peak_allocated_bytes=median(good, "peak_allocated_bytes"),
        sent_bytes={phase: getattr(first, f"sent_bytes_{phase}") for phase in PHASES},
        predicted_bytes={phase: getattr(first, f"predicted_bytes_{phase}") for phase in PHASES},
        output_error=proved.output_error,
        gradient_error=proved.gradient_error,
        tolerance=proved.tolerance,
        gate="failed" if wrong else passed,
    )


def _cause(records: Sequence[Record]) -> Record:
    """Of launches without figures a wrong one, else the last that was tried: others were skipped
    because of it."""
    wrong = [one for one in records if one.status == "wrong_result"]
    return next((one for one in reversed(wrong or records) if one.status != "skipped"), records[-1])


def _reason(records: Sequence[Record], good: Sequence[Record]) -> str:
    """Why there are no figures, or that they are not of all launches, or of noisy ones."""
    if not good:
        return _cause(records).reason
    said = []
    failed = [record for record in records if record.status != "ok"]
    if failed:
        worst = _cause(failed)
        said.append(f"{failed_launches(worst.status, records)}. {worst.reason}")
    noisy = [record for record in records if record.status == "ok" and record.noisy]
    if noisy:
        is_left_out = all(not record.noisy for record in good)
        effect = "left out" if is_left_out else "so the time is unreliable"
        said.append(f"{len(noisy)} of {len(records)} launches noisy, {effect}: {noisy[-1].noisy}")
    return "; ".join(said)


def _time(records: Sequence[Record]) -> float | None:
    found = times(records)
    return statistics.median(found.values()) if found else None
