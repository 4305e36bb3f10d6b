"""What explains that a case takes longer than before, or less: its columns of both runs say so.

A step is computation and exposed communication, which are told apart where silent steps were timed.
Communication is exposed for longer where more is sent, and everything takes longer where a GPU's
allocator is out of memory.
"""

import statistics
from collections.abc import Sequence

from spbench.analysis.case_figures import figure, split_of
from spbench.analysis.launches import CaseRows
from spbench.results.record import Record

MOST = 0.7
"""Part of a change from which on one of the two explains it alone."""


def culprit_of(before: CaseRows, after: CaseRows, sent_changed: bool) -> str:
    """Compute, exposed, bytes or memory, and by how much, as ``compute: +9.8 of +10 ms``.

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
    parts = {"compute": compute - compute_was, "exposed": exposed - exposed_was}
    whole = sum(parts.values())
    name = next((name for name, part in parts.items() if whole and part / whole >= MOST), "both")
    words = f"{parts.get(name, whole):+.3g} of {whole:+.3g} ms"
    if name == "exposed" and sent_changed:
        return f"bytes: exposed communication {words}; what is sent changed"
    if name == "both":
        words = f"compute {parts['compute']:+.3g} ms, exposed {parts['exposed']:+.3g} ms"
    return f"{name}: {words}"


def _split(records: Sequence[Record]) -> tuple[float, float] | None:
    """Milliseconds of computation and of exposed communication; None where they are not known."""
    if any(record.kind == "one_gpu_share" for record in records):
        share = figure([ms for record in records if (ms := record.compute_ms)])
        return (share.mean, 0.0) if share else None
    step = figure([ms for record in records if (ms := record.step_ms)])
    compute, exposed = split_of(step.mean if step else None, records)
    return None if compute is None or exposed is None else (compute, exposed)


def _retries(records: Sequence[Record]) -> float:
    """How often the allocator emptied its cache in a launch."""
    return statistics.median([record.alloc_retries or 0 for record in records] or [0])
