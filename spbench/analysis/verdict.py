"""The verdict of a check: which findings fail it, pass it, or leave it undecided.

Bytes and calls fail on any difference, memory above its margin, time only where the launches
leave no doubt: where the slowdown is significant after Holm's correction for several cases, at a
level that all looks of a check share. The findings of one case together have one verdict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from spbench.analysis.compare import Comparison
from spbench.analysis.findings import Finding, Margins, Metric
from spbench.analysis.intervals import CONFIDENCE, holm
from spbench.analysis.launches import launches_in_words

Grade = Literal["pass", "fail", "undecided"]
MAX_SLOWDOWN = 0.03
"""Default margin of a check: a step may take 3 % longer."""
ALPHA = (1 - CONFIDENCE) / 2
"""One-sided level for all cases and looks of a check together: a single case that is judged once
fails exactly when its interval is beyond the margin."""
LAUNCHES = 5
"""Default number of launches of each case and version that a check starts with."""
SHARES = (1 / 4, 1 / 4, 1 / 2)
"""Shares of ``ALPHA`` that the looks at two, three and four times the launches may spend. The first
look spends nothing: a case that would fail is measured again. The last spends most: a case that is
still open is near the margin. No look spends less than the one before it, so a case that has
failed and is not measured again fails again."""
MOST_TIMES = 1 + len(SHARES)
"""A check measures a case at most so many times as often as ``--launches`` says."""


@dataclass(frozen=True, kw_only=True)
class Graded:
    """A finding, and its effect on the check."""

    finding: Finding
    grade: Grade


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """All findings of a check."""

    graded: list[Graded]

    def of(self, grade: Grade) -> list[Finding]:
        return [graded.finding for graded in self.graded if graded.grade == grade]

    @property
    def findings(self) -> list[Finding]:
        return [graded.finding for graded in self.graded]

    @property
    def timed(self) -> list[Finding]:
        """Times that may be compared, even if there are too few launches for a verdict."""
        return [finding for finding in self.findings if is_timed(finding)]

    @property
    def is_comparable(self) -> bool:
        """Whether every case has its counterpart, and at least one has a figure to judge."""
        verdicts = {finding.verdict for finding in self.findings}
        has_figures = any(finding.metric != "status" for finding in self.findings)
        return has_figures and not verdicts & {"missing", "not comparable"}

    def is_decided(self, *, strict: bool) -> bool:
        """Whether the check fails or passes; with ``strict``, inconclusive cases do not pass."""
        if self.of("fail"):
            return True
        return self.is_comparable and not (strict and self.of("undecided"))


def judged(findings: Sequence[Finding], margins: Margins, *, share: float = 1.0) -> Judgement:
    """Grades all findings of a check; ``share`` of ``ALPHA`` is spent on this look."""
    alpha = share * ALPHA
    slower = _slower(findings, alpha)
    # Holm's level for the first case that fails, which has to be clearer than all others: with
    # 5 cases a fifth of that for one.
    strictest = alpha / max(sum(map(is_timed, findings)), 1)
    graded = [
        _graded(finding, place in slower, margins, strictest)
        for place, finding in enumerate(findings)
    ]
    return Judgement(graded=graded)


def is_timed(finding: Finding) -> bool:
    """Whether the finding compares times that may be compared."""
    return finding.comparison is not None and finding.verdict != "not comparable"


def _slower(findings: Sequence[Finding], alpha: float) -> set[int]:
    """The places of the times that are significantly above the margin, among all cases."""
    p_values = {
        i: finding.comparison.p_slower
        for i, finding in enumerate(findings)
        if finding.comparison is not None and is_timed(finding)
    }
    return holm(p_values, alpha)


def _graded(finding: Finding, is_slower: bool, margins: Margins, strictest: float) -> Graded:
    if finding.verdict in ("not comparable", "missing"):
        return Graded(finding=finding, grade="undecided")
    if finding.comparison is not None:
        return _graded_time(finding, finding.comparison, is_slower, margins.time, strictest)
    fails = finding.verdict == ("broke" if finding.metric == "status" else "changed")
    if finding.metric == "memory":
        fails = finding.ratio is not None and finding.ratio > 1 + margins.memory
    return Graded(finding=finding, grade="fail" if fails else "pass")


def _open(finding: Finding, times: Comparison, margin: float, strictest: float) -> Finding:
    """The finding with the launches that decide whether it is above the margin.

    A case fails where it is significant among all cases, so one above the margin is to be decided
    at the strictest level. It passes when its own interval is below the margin, however many
    other cases there are.
    """
    if times.is_noisy or times.high is None or times.estimate is None:
        return finding
    level = strictest if times.estimate.value > 1 + margin else ALPHA
    needs = times.estimate.launches_needed(1 + margin, 1 - level)
    reason = launches_in_words(needs, times.counts, is_paired=times.paired)
    if finding.verdict == "slower":
        reason = (
            f"slower than the margin on its own, but not significantly among all cases: {reason}"
        )
    times = replace(times, needs=needs, reason=reason)
    return replace(finding, verdict="inconclusive", reason=reason, comparison=times)


def _graded_time(
    finding: Finding, times: Comparison, is_slower: bool, margin: float, strictest: float
) -> Graded:
    if is_slower:
        return Graded(finding=replace(finding, verdict="slower"), grade="fail")
    if times.is_noisy or times.high is None or times.high > 1 + margin:
        return Graded(finding=_open(finding, times, margin, strictest), grade="undecided")
    if finding.verdict == "inconclusive":  # between faster and the same: good enough
        finding = replace(finding, verdict="not slower", reason="")
    return Graded(finding=finding, grade="pass")


ORDER = (
    *("broke", "slower", "changed", "missing", "not comparable", "inconclusive"),
    *("fixed", "faster", "new", "failed as before", "not judged", "same"),
)
"""Verdicts of cases, those first that a reader must see."""
UNCHANGED = ("failed as before", "not judged", "same")


@dataclass(frozen=True, kw_only=True)
class CaseChange:
    """One case before and after."""

    findings: Mapping[Metric, Finding]
    grades: frozenset[Grade]

    @property
    def any(self) -> Finding:
        """The finding of the status, which every case has."""
        return self.findings["status"]

    @property
    def verdict(self) -> str:
        """The first of ``ORDER`` that is true of the case; "not slower" counts as the same."""
        verdicts = {finding.verdict for finding in self.findings.values()}
        if len(self.findings) == 1 and verdicts == {"same"}:
            return "failed as before" if self.any.after != "ok" else "not judged"
        return next((name for name in ORDER if name in verdicts), "same")

    @property
    def culprit(self) -> str:
        """What explains the change; blank where there is none to explain."""
        status, time = self.any, self.findings.get("time")
        if status.verdict == "broke":
            return "memory: " + str(status.after) if "oom" in str(status.after) else ""
        if time is not None and time.verdict in ("slower", "faster"):
            return time.culprit
        changed = {metric for metric, f in self.findings.items() if f.verdict == "changed"}
        words: dict[Metric, str] = {"volume": "bytes", "memory": "memory"}
        return ", ".join(word for metric, word in words.items() if metric in changed)


def case_changes(judgement: Judgement) -> list[CaseChange]:
    """The cases of a judgement, in the order of their verdicts."""
    findings: dict[tuple[object, ...], dict[Metric, Finding]] = {}
    grades: dict[tuple[object, ...], set[Grade]] = {}
    for graded in judgement.graded:
        finding = graded.finding
        case = finding.panel, finding.strategy, finding.ranks, finding.case
        findings.setdefault(case, {})[finding.metric] = finding
        grades.setdefault(case, set()).add(graded.grade)
    changes = [
        CaseChange(findings=of_case, grades=frozenset(grades[case]))
        for case, of_case in findings.items()
    ]
    return sorted(changes, key=lambda change: ORDER.index(change.verdict))
