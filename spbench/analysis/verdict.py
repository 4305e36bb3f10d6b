"""The gate for changes of the code: which findings fail it, pass it, or leave it undecided.

Bytes and calls fail on any difference, memory above its margin, time only where the launches
leave no doubt: of several cases those whose slowdown stands after Holm's correction, at a level
that all looks of a check share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from spbench.analysis.compare import Comparison, launches_in_words
from spbench.analysis.findings import Finding, Margins
from spbench.analysis.intervals import CONFIDENCE, holm

Grade = Literal["pass", "fail", "undecided"]
MAX_SLOWDOWN = 0.03
"""Of a check, unless told otherwise."""
ALPHA = (1 - CONFIDENCE) / 2
"""One-sided, for all cases and looks of a check together: a single case that is judged once fails
just when its interval is beyond the margin."""
LAUNCHES = 5
"""Launches of each case and version that a check starts with, unless told otherwise."""
SHARES = (1 / 4, 1 / 4, 1 / 2)
"""Shares of ``ALPHA`` that the looks at two, three and four times the launches may spend. The first
look spends nothing: whatever would fail by it is looked at again. The last spends most: what is
still open by then is near the margin. No look spends less than the one before it, so what has
failed and is not measured again fails again."""
MOST_TIMES = 1 + len(SHARES)
"""A check measures a case at most so many times as often as it was asked to."""


@dataclass(frozen=True, kw_only=True)
class Graded:
    """A finding, and what it means for the check."""

    finding: Finding
    grade: Grade


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """All findings of a check."""

    graded: list[Graded]

    def of(self, grade: Grade) -> list[Finding]:
        return [one.finding for one in self.graded if one.grade == grade]

    @property
    def findings(self) -> list[Finding]:
        return [one.finding for one in self.graded]

    @property
    def timed(self) -> list[Finding]:
        """Times that may be compared, whether or not there are enough of them."""
        return [one for one in self.findings if is_timed(one)]

    @property
    def is_comparable(self) -> bool:
        """Whether every case had its counterpart, and any had a figure to judge."""
        apart = {"missing", "not comparable"}
        figures = [one for one in self.findings if one.metric != "status"]
        return not any(one.verdict in apart for one in self.findings) and bool(figures)

    def is_decided(self, *, strict: bool) -> bool:
        """Whether it fails or passes: ``strict`` does not pass what is open."""
        if self.of("fail"):
            return True
        return self.is_comparable and not (strict and self.of("undecided"))


def judged(findings: Sequence[Finding], margins: Margins, *, share: float = 1.0) -> Judgement:
    """Grades of all findings of one check; ``share`` of ``ALPHA`` is spent on this look."""
    alpha = share * ALPHA
    slower = _slower(findings, alpha)
    # By Holm the last of the cases has to be clearer than all the others.
    last = alpha / max(sum(map(is_timed, findings)), 1)
    return Judgement(
        graded=[_graded(one, i in slower, margins, last) for i, one in enumerate(findings)]
    )


def is_timed(finding: Finding) -> bool:
    """Whether it is of times that may be compared."""
    return finding.comparison is not None and finding.verdict != "not comparable"


def _slower(findings: Sequence[Finding], alpha: float) -> set[int]:
    """The times that are above the margin beyond doubt, all cases taken together."""
    p_values = {
        i: one.comparison.p_slower
        for i, one in enumerate(findings)
        if one.comparison is not None and is_timed(one)
    }
    fallen = holm([*p_values.values()], alpha)
    return {i for i, fell in zip(p_values, fallen, strict=True) if fell}


def _graded(finding: Finding, is_slower: bool, margins: Margins, alpha: float) -> Graded:
    if finding.verdict in ("not comparable", "missing"):
        return Graded(finding=finding, grade="undecided")
    if finding.comparison is not None:
        return _graded_time(finding, finding.comparison, is_slower, margins.time, alpha)
    fails = finding.verdict == ("broke" if finding.metric == "status" else "changed")
    if finding.metric == "memory":
        fails = finding.ratio is not None and finding.ratio > 1 + margins.memory
    return Graded(finding=finding, grade="fail" if fails else "pass")


def _open(finding: Finding, found: Comparison, margin: float, alpha: float) -> Finding:
    """Only the upper limit is of interest here; how much faster it is can stay open. It passes by
    its own interval, and fails by its share of the error."""
    if found.is_noisy or found.high is None or found.estimate is None:
        return finding
    share = alpha if found.estimate.value > 1 + margin else ALPHA
    needs = found.estimate.launches_needed(1 + margin, 1 - share)
    reason = launches_in_words(needs, found.counts, is_paired=found.paired)
    if finding.verdict == "slower":
        reason = (
            f"slower than the margin on its own, but not significantly among all cases: {reason}"
        )
    found = replace(found, needs=needs, reason=reason)
    return replace(finding, verdict="inconclusive", reason=reason, comparison=found)


def _graded_time(
    finding: Finding, found: Comparison, is_slower: bool, margin: float, alpha: float
) -> Graded:
    if is_slower:
        return Graded(finding=replace(finding, verdict="slower"), grade="fail")
    if found.is_noisy or found.high is None or found.high > 1 + margin:
        return Graded(finding=_open(finding, found, margin, alpha), grade="undecided")
    if finding.verdict == "inconclusive":  # between faster and the same: good enough
        finding = replace(finding, verdict="not slower", reason="")
    return Graded(finding=finding, grade="pass")
