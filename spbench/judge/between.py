"""Two runs against each other, case by case and metric by metric.

Times are judged by interval, memory by a margin, bytes and calls exactly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from spbench.judge import volume
from spbench.judge.comparison import MARGIN, Comparison, compare_times, times
from spbench.judge.fingerprint import LIBRARIES, mismatch
from spbench.judge.groups import group_of, titles
from spbench.judge.matching import matched
from spbench.judge.neighbours import Both
from spbench.results.record import Record

Metric = Literal["status", "time", "memory", "volume"]
SAME_LAUNCHES = "both sides are the same launches"
METRICS: tuple[Metric, ...] = ("status", "time", "memory", "volume")


@dataclass(frozen=True, kw_only=True)
class Margins:
    """How much more is still the same."""

    time: float = MARGIN
    memory: float = 0.01


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One metric of one case, before and after."""

    case: str = ""
    """Its key on the side that has it; the second's where both have."""
    panel: str = ""
    """Workload, shape and mode in words."""
    strategy: str = ""
    ranks: int = 0
    metric: Metric
    verdict: str
    """faster, same, slower, inconclusive, broke, fixed, changed, new, missing, not comparable."""
    before: float | str | None = None
    """Milliseconds, bytes or a status."""
    after: float | str | None = None
    comparison: Comparison | None = None
    """Of times."""
    reason: str = ""

    @property
    def ratio(self) -> float | None:
        """After over before."""
        if self.comparison is not None:
            return self.comparison.ratio
        if isinstance(self.before, str) or isinstance(self.after, str):
            return None
        return self.after / self.before if self.before and self.after is not None else None


def between(
    before: Iterable[Record],
    after: Iterable[Record],
    margins: Margins = Margins(),
    *,
    metrics: Sequence[Metric] = METRICS,
    allow_mismatch: bool = False,
    traces: Both | None = None,
) -> list[Finding]:
    """Findings for each case that either side has, in the order of the second.

    ``traces``: iterations of launches that took turns (see ``neighbours.py``).
    """
    every = [list(before), list(after)]
    panels = titles(record for side in every for record in side)
    found: list[Finding] = []
    for old, new in matched(*every):
        here = [_status(old, new)]
        if old and new:
            more = _not_in(old, new)
            here += [
                *_time(old, more, margins.time, allow_mismatch, traces),
                *_memory(old, more, margins.memory, allow_mismatch),
                *_volume(old, more),
            ]
        one = (new or old)[-1]
        found += [
            replace(
                finding,
                case=one.case,
                panel=panels[group_of(one)],
                strategy=one.strategy,
                ranks=one.world_size,
            )
            for finding in here
        ]
    return [one for one in found if one.metric in metrics or one.metric == "status"]


def _not_in(before: Sequence[Record], after: Sequence[Record]) -> Sequence[Record]:
    """Of a run that went on after its baseline was made, what is new; of the same run, all."""
    known = set(before)
    return [one for one in after if one not in known] or after


def _status(before: Sequence[Record], after: Sequence[Record]) -> Finding:
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
    counts = Counter(record.status for record in records)
    alike = counts.pop(worst.status)
    counts.pop("ok", None)
    share = f"{alike} of {len(records)} launches: " if alike < len(records) else ""
    also = "".join(f", {count} {status}" for status, count in counts.items())
    return f"{share}{worst.status}{also}{', as before' if as_before else ''}. {worst.reason}"


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


def _time(
    before: Sequence[Record],
    after: Sequence[Record],
    margin: float,
    allow_mismatch: bool,
    traces: Both | None,
) -> list[Finding]:
    said = compare_times(before, after, margin, allow_mismatch=allow_mismatch, traces=traces)
    if said is None:
        return _unless_lost("time", bool(times(_ok(before))), after)
    is_itself = said.verdict == "same" and set(after) <= set(before)
    return [
        Finding(
            metric="time",
            verdict=said.verdict,
            before=said.before_ms,
            after=said.after_ms,
            comparison=said,
            reason=SAME_LAUNCHES if is_itself else said.reason,
        )
    ]


def _memory(
    before: Sequence[Record], after: Sequence[Record], margin: float, allow_mismatch: bool
) -> list[Finding]:
    """The largest of the launches: what one of them takes, any may take."""
    old, new = _ok(before), _ok(after)
    was, now = (
        max((one.peak_allocated_bytes for one in side if one.peak_allocated_bytes), default=0)
        for side in (old, new)
    )
    if not was or not now:
        return _unless_lost("memory", bool(was), after)
    why_not = mismatch(old, new, LIBRARIES)
    if why_not and not allow_mismatch:
        return [Finding(metric="memory", verdict="not comparable", reason=why_not)]
    inside = 1 - margin <= now / was <= 1 + margin
    verdict = "not comparable" if why_not else "same" if inside else "changed"
    return [Finding(metric="memory", verdict=verdict, before=was, after=now, reason=why_not)]


def _volume(before: Sequence[Record], after: Sequence[Record]) -> list[Finding]:
    """Also of launches that were wrong now, if they were to send something else: it tells why."""
    if not _ok(before):
        return []
    was, now = volume.both(before, after)
    if was is None or now is None:
        return _unless_lost("volume", was is not None, after)
    reason = volume.difference(before, after)
    if not reason and not _ok(after):
        return []  # what was to be sent is the same; what was sent is not known to be
    verdict = "changed" if reason else "same"
    return [Finding(metric="volume", verdict=verdict, before=was, after=now, reason=reason)]


def _unless_lost(metric: Metric, was_known: bool, after: Sequence[Record]) -> list[Finding]:
    """What was known and is no more would pass for want of a figure."""
    if not was_known or not _ok(after):
        return []
    return [Finding(metric=metric, verdict="not comparable", reason="it was not measured now")]


def _ok(records: Sequence[Record]) -> list[Record]:
    return [record for record in records if record.status == "ok"]
