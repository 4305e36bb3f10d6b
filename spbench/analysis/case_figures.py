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
from spbench.analysis.rows import LaunchRow, LaunchRows
from spbench.results.record import larger_error
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


def step_figure(rows: LaunchRows) -> Figure | None:
    """The figure of a step, of a projected one with its own interval; None without a time."""
    if len(rows) and rows.row(-1)["kind"] == "projected":
        last = rows.row(-1)
        ms, low, high = (last[name] for name in ("step_ms", "step_ms_low", "step_ms_high"))
        if ms and low and high:
            return Figure(mean=ms, low=low, high=high, is_interval=False)
    return figure(rows.measured("step_ms"))


def split_of(step_ms: float | None, rows: LaunchRows) -> tuple[float | None, float | None]:
    """Milliseconds of computation and of exposed communication: together they are ``step_ms``.

    None where a launch does not know its own. Where nothing is sent, no communication is exposed;
    rows of earlier versions say otherwise.
    """
    # Bytes that were not counted (None) may have been sent.
    if step_ms is not None and all({*rows[f"sent_bytes_{phase}"]} <= {0} for phase in PHASES):
        return step_ms, 0.0
    computed = rows.measured("compute_ms")
    exposed = [ms for ms in rows["exposed_comm_ms"] if ms is not None]
    is_known = len(exposed) == len(rows) > 0
    if not computed or len(computed) < len(rows):
        return None, statistics.fmean(exposed) if is_known else None
    compute_ms = geometric_mean(computed)
    return compute_ms, step_ms - compute_ms if step_ms is not None and is_known else None


def gate_error(row: LaunchRow) -> float | None:
    """The larger error of the gate of a launch."""
    return larger_error(row["output_error"], row["gradient_error"])


def wrong_besides_gate(row: LaunchRow) -> str:
    """What is wrong with a launch whose numbers passed the gate; blank if they did not."""
    if row["repeat_error"] is not None or row["agreement_error"] is not None:
        return "timed step"
    error, tolerance = gate_error(row), row["tolerance"]
    if error is None or tolerance is None:
        return ""
    is_other = any(
        (row[f"sent_bytes_{phase}"] or 0) != (row[f"predicted_bytes_{phase}"] or 0)
        for phase in PHASES
    )
    return "bytes" if is_other and error <= tolerance else ""


def culprit_of(before: CaseRows, after: CaseRows, sent_changed: bool) -> str:
    """Compute, exposed, bytes or memory, and by how much, as ``compute: +9.8 of +10 ms``, or where
    the two parts went apart ``compute: +20 ms, exposed communication -12 ms, together +8 ms``.

    ``sent_changed``: whether bytes or calls differ.
    """
    old, new = (case.used.having("status", "ok") for case in (before, after))
    retries = _retries(new) - _retries(old)
    if retries >= 1:
        return f"memory: the allocator emptied its cache {retries:.0f} times more in a launch"
    splits = [_split(rows) for rows in (old, new)]
    if None in splits:
        notes = [*new["compute_note"], *old["compute_note"]]
        why = next(filter(None, notes), "no silent steps")
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


def _split(rows: LaunchRows) -> tuple[float, float] | None:
    """Milliseconds of computation and of exposed communication; None where they are not known."""
    if "one_gpu_share" in rows["kind"]:
        share = figure(rows.measured("compute_ms"))
        return (share.mean, 0.0) if share else None
    step = step_figure(rows)
    compute, exposed = split_of(step.mean if step else None, rows)
    return None if compute is None or exposed is None else (compute, exposed)


def _retries(rows: LaunchRows) -> float:
    """How often the allocator emptied its cache in a launch."""
    return statistics.median([count or 0 for count in rows["alloc_retries"]] or [0])


def failed_launches(status: str, rows: LaunchRows) -> str:
    """Launches with this status, and with others but ok: 1 of 5 launches: hang, 2 crash."""
    counts = Counter[str](other for other in rows["status"] if other != "ok")
    share = f"{counts.pop(status)} of {len(rows)} launches: {status}"
    return share + "".join(f", {count} {other}" for other, count in counts.items())


def cause_of(rows: LaunchRows) -> LaunchRow:
    """The launch that explains why there are no figures: a wrong one, else the last that ran."""
    wrong = rows.having("status", "wrong_result")
    candidates = wrong if len(wrong) else rows
    ran = candidates.only(status != "skipped" for status in candidates["status"])
    return (ran if len(ran) else rows).row(-1)


def why_incomplete(rows: LaunchRows, good: LaunchRows) -> str:
    """Why there are no figures or not all, or which launches failed or were noisy."""
    if not len(good):
        return str(cause_of(rows)["reason"])
    reasons, count = [], len(rows)
    failed = rows.only(status != "ok" for status in rows["status"])
    if len(failed):
        worst = cause_of(failed)
        reasons.append(f"{failed_launches(worst['status'], rows)}. {worst['reason']}")
    finished = rows.having("status", "ok")
    if noisy := [*filter(None, finished["noisy"])]:
        effect = "so the time is unreliable" if any(good["noisy"]) else "left out"
        last = f"in the last {noisy[-1]}" if len({*noisy}) > 1 else noisy[-1]
        reasons.append(f"{len(noisy)} of {count} launches noisy, {effect}: {last}")
    if unsteady := len(good.having("steady", "no").having("effort", "full")):
        reasons.append(f"{unsteady} of {count} launches timed before they were steady")
    if unpaired := len(finished.having("noisy", "")) - len(good.having("noisy", "")):
        other = "another strategy's launch in the same round was noisy or failed"
        reasons.append(f"{unpaired} of {count} launches left out: {other}")
    # Of several reasons the last alone is named.
    notes = [*dict.fromkeys(filter(None, good["compute_note"]))][-1:]
    return "; ".join(reasons + [f"exposed time is not known: {note}" for note in notes])
