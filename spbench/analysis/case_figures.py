"""The figures of a case over its launches: means with an interval, and what a step is made of.

All are geometric means over the same launches, so that figures agree with each other: the ratio of
two step times is the mean ratio of launches, and computation and exposed communication add up to
the step.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from spbench.analysis.intervals import around, geometric_mean
from spbench.results.record import Record
from spbench.workload.traffic import PHASES


@dataclass(frozen=True, kw_only=True)
class Figure:
    """The geometric mean over the launches of a case, with its interval or range."""

    mean: float
    low: float
    high: float
    is_interval: bool
    """Whether low and high are the 95 % interval of launches; else they are the smallest and the
    largest value, or of a projected step its own 90 % interval."""


def figure(values: Sequence[float]) -> Figure | None:
    """The figure of these values, all above 0; None if there are none."""
    if not values:
        return None
    interval = around(values)
    low, high = interval or (min(values), max(values))
    mean = geometric_mean(values)
    return Figure(mean=mean, low=low, high=high, is_interval=interval is not None)


def projected_figure(records: Sequence[Record]) -> Figure | None:
    """A projected step with its own interval; None of other rows."""
    for row in records[-1:]:
        if row.kind == "projected" and row.step_ms and row.step_ms_low and row.step_ms_high:
            return Figure(
                mean=row.step_ms, low=row.step_ms_low, high=row.step_ms_high, is_interval=False
            )
    return None


def split_of(step_ms: float | None, records: Sequence[Record]) -> tuple[float | None, float | None]:
    """Milliseconds of computation and of exposed communication: together they are ``step_ms``.

    None where a launch does not know its own. Where nothing is sent, no communication is exposed;
    rows of earlier versions say otherwise.
    """
    if step_ms is not None and not any(any(_sent(record, 1)) for record in records):
        return step_ms, 0.0
    computed = [record.compute_ms for record in records if record.compute_ms]
    exposed = [ms for record in records if (ms := record.exposed_comm_ms) is not None]
    if not computed or len(computed) < len(records):
        is_known = exposed and len(exposed) == len(records)
        return None, statistics.fmean(exposed) if is_known else None
    compute_ms = geometric_mean(computed)
    is_known = step_ms is not None and len(exposed) == len(records)
    return compute_ms, step_ms - compute_ms if step_ms is not None and is_known else None


def wrong_besides_gate(record: Record) -> str:
    """What is wrong with a launch whose numbers passed the gate; blank if they did not."""
    if record.repeat_error is not None or record.agreement_error is not None:
        return "timed step"
    if record.gate_error is None or record.tolerance is None:
        return ""
    predicted = [getattr(record, f"predicted_bytes_{phase}") or 0 for phase in PHASES]
    is_other = _sent(record, 0) != predicted
    return "bytes" if is_other and record.gate_error <= record.tolerance else ""


def _sent(record: Record, unknown: int) -> list[int]:
    """Bytes of each phase; ``unknown`` where they were not counted."""
    counts = [getattr(record, f"sent_bytes_{phase}") for phase in PHASES]
    return [unknown if count is None else count for count in counts]
