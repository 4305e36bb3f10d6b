"""The status of a case, before and after: what failed, and whether it did so before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from spbench.analysis.findings import Finding
from spbench.results.record import Record


def status(before: Sequence[Record], after: Sequence[Record]) -> Finding:
    """A launch that failed is the case's status: nobody can rely on the others. An earlier failure
    excuses none of another kind."""
    if not after:
        return Finding(metric="status", verdict="missing", reason="there is no such case now")
    if not before:
        return _status_of_new(_worst(after))
    known = {record.status for record in before}
    old, new = _worst(before), _worst(after, but=known)
    good = [any(record.status == "ok" for record in side) for side in (before, after)]
    if new.status == "ok":
        verdict = "same" if old.status == "ok" else "fixed"
    elif new.status in known and good[0] <= good[1]:
        verdict = "same"
    else:
        verdict = "broke" if good[0] else "changed"
    if verdict == "fixed":
        reason = f"it was {old.status}. {old.reason}"
    else:
        reason = _of_failing(new, after, as_before=verdict == "same")
    return Finding(
        metric="status", verdict=verdict, before=old.status, after=new.status, reason=reason
    )


def _of_failing(worst: Record, records: Sequence[Record], *, as_before: bool) -> str:
    """How many launches ended like ``worst``, of all, and why it did; blank if it is ok."""
    if worst.status == "ok":
        return ""
    alone = all(one.status == worst.status for one in records)
    said = worst.status if alone else ended(worst.status, records)
    return f"{said}{', as before' if as_before else ''}. {worst.reason}"


def ended(status: str, records: Sequence[Record]) -> str:
    """How many launches did so, and how many otherwise than ok: 1 of 5 launches: hang, 2 crash."""
    counts = Counter[str](record.status for record in records if record.status != "ok")
    share = f"{counts.pop(status)} of {len(records)} launches: {status}"
    return share + "".join(f", {count} {other}" for other, count in counts.items())


def _status_of_new(record: Record) -> Finding:
    """What was not there, or not to be run, and fails now: no earlier failure excuses it."""
    none_before = "there was no such case before"
    if record.status in ("ok", "skipped"):
        return Finding(metric="status", verdict="new", reason=none_before)
    reason = f"{record.status}, and {none_before}. {record.reason}"
    return Finding(metric="status", verdict="broke", after=record.status, reason=reason)


def _worst(records: Sequence[Record], but: Collection[str] = ()) -> Record:
    """One that failed, otherwise than ``but`` if there is such a one; else one that is ok."""
    failed = [record for record in records if record.status != "ok"]
    otherwise = [record for record in failed if record.status not in but]
    return (otherwise or failed or records[-1:])[0]
