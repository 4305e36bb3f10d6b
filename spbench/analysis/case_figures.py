"""The figures of a case over its launches: means with an interval, what a step is made of, and what
explains that it takes longer than before, or less; and why figures lack some launches.

All are geometric means over the same launches, so that figures agree with each other: the ratio of
two step times is the mean ratio of launches, and computation and exposed communication add up to
the step. Communication is exposed for longer where more is sent, and everything takes longer where
a GPU's allocator is out of memory.
"""

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from spbench.analysis.intervals import around, geometric_mean
from spbench.analysis.launches import CaseRows
from spbench.results.record import Record
from spbench.workload.traffic import PHASES

MOST = 0.7
"""Part of a change from which on one of the two explains it alone."""


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
    return Figure(mean=geometric_mean(values), low=low, high=high, is_interval=interval is not None)


def measured(records: Sequence[Record], column: str) -> list[float]:
    """The values of a column that were measured: above 0."""
    return [value for record in records if (value := getattr(record, column))]


def step_figure(records: Sequence[Record]) -> Figure | None:
    """The figure of a step, of a projected one with its own interval; None without a time."""
    for row in records[-1:]:
        if row.kind == "projected" and row.step_ms and row.step_ms_low and row.step_ms_high:
            return Figure(
                mean=row.step_ms, low=row.step_ms_low, high=row.step_ms_high, is_interval=False
            )
    return figure(measured(records, "step_ms"))


def split_of(step_ms: float | None, records: Sequence[Record]) -> tuple[float | None, float | None]:
    """Milliseconds of computation and of exposed communication: together they are ``step_ms``.

    None where a launch does not know its own. Where nothing is sent, no communication is exposed;
    rows of earlier versions say otherwise.
    """
    if step_ms is not None and not any(any(_sent(record, 1)) for record in records):
        return step_ms, 0.0
    computed = measured(records, "compute_ms")
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


def culprit_of(before: CaseRows, after: CaseRows, sent_changed: bool) -> str:
    """Compute, exposed, bytes or memory, and by how much, as ``compute: +9.8 of +10 ms``, or where
    the two parts went apart ``compute: +20 ms, exposed communication -12 ms, together +8 ms``.

    ``sent_changed``: whether bytes or calls differ.
    """
    old, new = ([row for row in case.used if row.status == "ok"] for case in (before, after))
    retries = _retries(new) - _retries(old)
    if retries >= 1:
        return f"memory: the allocator emptied its cache {retries:.0f} times more in a launch"
    splits = [_split(records) for records in (old, new)]
    if None in splits:
        why = next((r.compute_note for r in [*new, *old] if r.compute_note), "no silent steps")
        if sent_changed:
            return f"bytes: what is sent changed; the step is not split ({why})"
        return f"not split: {why}; bytes and calls are the same"
    (compute_was, exposed_was), (compute, exposed) = (split or (0.0, 0.0) for split in splits)
    name, words = _parts_in_words(compute - compute_was, exposed - exposed_was)
    if name == "exposed" and sent_changed:
        return f"bytes: exposed communication {words}; what is sent changed"
    return f"{name}: {words}"


def _parts_in_words(compute_ms: float, exposed_ms: float) -> tuple[str, str]:
    """Compute, exposed or both, which makes up most of the change; and by how much.

    One that alone would be more than the whole, since the other went the other way, stands beside
    that other: +20 ms, exposed communication -12 ms, together +8 ms.
    """
    whole = compute_ms + exposed_ms
    parts = {"compute": (compute_ms, exposed_ms), "exposed": (exposed_ms, compute_ms)}
    others = {"compute": "exposed communication", "exposed": "compute"}
    for name, (part, other) in parts.items():
        if not whole or part / whole < MOST:
            continue
        # Less than a hundredth of the whole is the rounding of three digits.
        if other / whole < -0.01:
            return name, f"{part:+.3g} ms, {others[name]} {other:+.3g} ms, together {whole:+.3g} ms"
        return name, f"{part:+.3g} of {whole:+.3g} ms"
    return "both", f"compute {compute_ms:+.3g} ms, exposed {exposed_ms:+.3g} ms"


def _split(records: Sequence[Record]) -> tuple[float, float] | None:
    """Milliseconds of computation and of exposed communication; None where they are not known."""
    if any(record.kind == "one_gpu_share" for record in records):
        share = figure(measured(records, "compute_ms"))
        return (share.mean, 0.0) if share else None
    step = step_figure(records)
    compute, exposed = split_of(step.mean if step else None, records)
    return None if compute is None or exposed is None else (compute, exposed)


def _retries(records: Sequence[Record]) -> float:
    """How often the allocator emptied its cache in a launch."""
    return statistics.median([record.alloc_retries or 0 for record in records] or [0])


def failed_launches(status: str, records: Sequence[Record]) -> str:
    """Launches with this status, and with others but ok: 1 of 5 launches: hang, 2 crash."""
    counts = Counter[str](record.status for record in records if record.status != "ok")
    share = f"{counts.pop(status)} of {len(records)} launches: {status}"
    return share + "".join(f", {count} {other}" for other, count in counts.items())


def cause_of(records: Sequence[Record]) -> Record:
    """The launch that explains why there are no figures: a wrong one, else the last that ran."""
    wrong = [record for record in records if record.status == "wrong_result"]
    return ([record for record in wrong or records if record.status != "skipped"] or records)[-1]


def why_incomplete(records: Sequence[Record], good: Sequence[Record]) -> str:
    """Why there are no figures or not all, or which launches failed or were noisy."""
    if not good:
        return cause_of(records).reason
    reasons = []
    if failed := [record for record in records if record.status != "ok"]:
        worst = cause_of(failed)
        reasons.append(f"{failed_launches(worst.status, records)}. {worst.reason}")
    if noisy := [record.noisy for record in records if record.status == "ok" and record.noisy]:
        effect = "so the time is unreliable" if any(record.noisy for record in good) else "left out"
        last = f"in the last {noisy[-1]}" if len({*noisy}) > 1 else noisy[-1]
        reasons.append(f"{len(noisy)} of {len(records)} launches noisy, {effect}: {last}")
    unsteady = [record for record in good if record.steady == "no" and record.effort == "full"]
    if unsteady:
        reasons.append(f"{len(unsteady)} of {len(records)} launches timed before they were steady")
    quiet = sum(record.status == "ok" and not record.noisy for record in records)
    if unpaired := quiet - sum(not record.noisy for record in good):
        other = "another strategy's launch in the same round was noisy or failed"
        reasons.append(f"{unpaired} of {len(records)} launches left out: {other}")
    notes = dict.fromkeys(record.compute_note for record in good if record.compute_note)
    return "; ".join(reasons + [f"exposed time is not known: {note}" for note in [*notes][-1:]])
