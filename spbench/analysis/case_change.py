"""The findings of one case together: one verdict, and what explains it."""

from collections.abc import Mapping
from dataclasses import dataclass

from spbench.analysis.findings import Finding, Metric
from spbench.analysis.verdict import Grade, Judgement

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
        changed = {metric for metric, each in self.findings.items() if each.verdict == "changed"}
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
