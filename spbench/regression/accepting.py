"""Applies accepted changes to a check, and writes new ones.

A change that was accepted no longer fails as long as it is not worse: by its interval where it is a
time, by its largest ratio where it is memory, exactly where it is bytes, calls or a status.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from spbench.analysis.compare import Comparison
from spbench.analysis.findings import Finding, Margins, Metric
from spbench.analysis.verdict import Graded, Judgement
from spbench.errors import or_none, writing
from spbench.regression.base_and_head import Checked
from spbench.results.accepted import NAME, Accepted, accepted_in, read_accepted, write_accepted
from spbench.results.machine import git_output


def apply_accepted(
    checked: Checked, baseline: str, revision: str, folder: Path, margins: Margins, reason: str
) -> Checked:
    """The check with what is accepted of it; a ``reason`` accepts all that would fail it.

    An entry of a baseline is about the run that it holds. One of a commit is over as soon as the
    commit that is checked against has it, too: then the base is as slow.
    """
    run = checked.origins()[0].run if baseline else ""
    every = read_accepted(folder)
    own = [entry for entry in every if entry.baseline == baseline]
    measured = {finding.case for finding in checked.judgement.findings}
    over = _over(own, run, [] if baseline else _of_base(revision, folder))
    remarks = [outdated(entry, why) for entry, why in over if entry.case in measured]
    entries = [entry for entry in own if entry not in [old for old, _ in over]]
    judgement = replace(checked.judgement, remarks=tuple(remarks))
    judged = with_accepted(judgement, entries)
    failing = judged.of("fail")
    if not reason or not failing:
        return replace(checked, judgement=judged)
    commit, date = checked.origins()[1].commit, f"{datetime.now(UTC):%Y-%m-%d}"
    more = {"baseline": baseline, "run": run, "commit": commit, "date": date, "reason": reason}
    new = [entry_of(finding, margins.memory, **more) for finding in failing]
    with writing(folder / NAME):
        write_accepted(folder, [*every, *new])
    return replace(checked, judgement=with_accepted(judgement, [*entries, *new]))


def _over(entries: list[Accepted], run: str, of_base: list[Accepted]) -> list[tuple[Accepted, str]]:
    """Entries that are about another base, and why."""
    return [
        (entry, f"the baseline holds another run than {entry.run}" if run else "the base has it")
        for entry in entries
        if entry.run != run or entry in of_base
    ]


def _of_base(revision: str, folder: Path) -> list[Accepted]:
    """The entries that the commit has in its own file; none where it has none that can be read."""
    file = f"{revision}:./{os.path.relpath(folder / NAME)}"
    return or_none(lambda: accepted_in(git_output("show", file), f"{revision}:{NAME}")) or []


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
    known = {(entry.case, entry.metric): entry for entry in entries}
    graded = [_excused(each, known.get(_place(each))) for each in judgement.graded]
    over = [
        outdated(entry, "it is not worse than the base")
        for each in judgement.graded
        if each.grade == "pass" and (entry := known.get(_place(each)))
    ]
    return replace(judgement, graded=graded, remarks=(*judgement.remarks, *over))


def outdated(entry: Accepted, why: str) -> str:
    """The sentence on an entry that is over."""
    what = f"{entry.metric} of {entry.strategy} on {entry.ranks} ranks"
    return f"{what}: accepted for {entry.reason!r}, which no longer applies: {why}"


def _place(graded: Graded) -> tuple[str, Metric]:
    return graded.finding.case, graded.finding.metric


def _excused(graded: Graded, entry: Accepted | None) -> Graded:
    finding = graded.finding
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
