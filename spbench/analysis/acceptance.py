"""What accepted changes do to a judgement.

A change that was accepted no longer fails as long as it is not worse: by its interval where it is a
time, by its largest ratio where it is memory, exactly where it is bytes, calls or a status.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from spbench.analysis.compare import Comparison
from spbench.analysis.findings import Finding, Metric
from spbench.analysis.verdict import Graded, Judgement
from spbench.results.accepted import Accepted

Entries = Mapping[tuple[str, Metric], Accepted]
"""Entries by case and metric."""


def entry_of(finding: Finding, margin: float, **more: str) -> Accepted:
    """What is written of a finding that is accepted; ``margin`` is that of memory."""
    times = finding.comparison
    high = finding.ratio
    if times is not None:
        high = times.high
    elif finding.metric == "memory" and high is not None:
        high *= 1 + margin
    exact = {"status": str(finding.after), "volume": finding.reason}
    is_ratio = finding.metric in ("time", "memory")
    return Accepted(
        case=finding.case,
        workload=finding.panel,
        strategy=finding.strategy,
        ranks=finding.ranks,
        metric=finding.metric,
        ratio=_rounded(finding.ratio),
        high=_rounded(high) if is_ratio else None,
        what=exact.get(finding.metric, ""),
        **more,
    )


def _rounded(ratio: float | None) -> float | None:
    """The ratio as people read it in a file: six digits behind the point."""
    return None if ratio is None else round(ratio, 6)


def with_accepted(judgement: Judgement, entries: Sequence[Accepted]) -> Judgement:
    """The judgement where these entries excuse what they are about; those that no longer apply are
    among its remarks."""
    known: Entries = {(entry.case, entry.metric): entry for entry in entries}
    graded = [_excused(each, known) for each in judgement.graded]
    over = [
        outdated(entry, "it is not worse than the base")
        for each in judgement.graded
        if each.grade == "pass" and (entry := known.get(_place(each)))
    ]
    return replace(judgement, graded=graded, remarks=(*judgement.remarks, *over))


def outdated(entry: Accepted, why: str) -> str:
    """The sentence on an entry that is over."""
    return f"{_named(entry)}: accepted for {entry.reason!r}, which no longer applies: {why}"


def _named(entry: Accepted) -> str:
    return f"{entry.metric} of {entry.strategy} on {entry.ranks} ranks"


def _place(graded: Graded) -> tuple[str, Metric]:
    return graded.finding.case, graded.finding.metric


def _excused(graded: Graded, known: Entries) -> Graded:
    entry, finding = known.get(_place(graded)), graded.finding
    if entry is None or graded.grade != "fail":
        return graded
    source = ", ".join(filter(None, (entry.commit, entry.date)))
    note = f"{entry.reason} ({source})" if source else entry.reason
    if finding.comparison is not None:
        return _excused_time(graded, finding.comparison, entry, note)
    if finding.metric == "memory":
        is_known = (finding.ratio or 0.0) <= (entry.high or 0.0)
    else:
        is_known = entry.what == (finding.reason if finding.metric == "volume" else finding.after)
    if is_known:
        return replace(graded, grade="accepted", note=note)
    return replace(graded, note=f"not as it was accepted: {note}")


def _excused_time(graded: Graded, times: Comparison, entry: Accepted, note: str) -> Graded:
    """Worse only where the whole interval is above the accepted one; in between it is open."""
    limit = entry.high or 0.0
    if times.ratio is not None and times.ratio <= limit:
        return replace(graded, grade="accepted", note=note)
    if times.low is None or times.low > limit:
        return replace(graded, note=f"worse than was accepted: {note}")
    reason = f"whether it is worse than was accepted (up to {limit:.3f}) is open"
    finding = replace(graded.finding, verdict="inconclusive", reason=reason)
    return Graded(finding=finding, grade="undecided", note=note)
