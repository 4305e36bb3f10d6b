"""Two runs against each other, case by case and metric by metric.

Times are judged by interval, memory by a margin, bytes and calls exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from spbench.analysis.comparable import LIBRARIES, matched, mismatch, panel_key, panel_titles
from spbench.analysis.compare import compare_times, times
from spbench.analysis.findings import (
    METRICS,
    USUAL,
    Finding,
    Margins,
    Metric,
    compare_status,
    sent_by_both,
    volume_difference,
)
from spbench.analysis.paired_steps import Both
from spbench.results.record import Record

SAME_LAUNCHES = "both runs hold the same launches"


def compare_runs(
    before: Iterable[Record],
    after: Iterable[Record],
    margins: Margins = USUAL,
    *,
    metrics: Sequence[Metric] = METRICS,
    allow_mismatch: bool = False,
    traces: Both | None = None,
) -> list[Finding]:
    """Findings for each case that either side has, in the order of the second.

    ``traces``: iterations of launches that took turns (see ``paired_steps.py``).
    """
    every = [list(before), list(after)]
    panels = panel_titles(record for side in every for record in side)
    found: list[Finding] = []
    for old, new in matched(*every):
        here = [compare_status(old, new)]
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
                panel=panels[panel_key(one)],
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
    was, now = sent_by_both(before, after)
    if was is None or now is None:
        return _unless_lost("volume", was is not None, after)
    reason = volume_difference(before, after)
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
