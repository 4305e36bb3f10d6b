"""The outcome of a check for machines that build: Markdown for a review, JUnit for a CI."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree as ET

from spbench.judge.between import Finding
from spbench.judge.regression import Graded, Judgement
from spbench.report.verdicts import columns, explained, panels, sentences
from spbench.workload.words import counted


def markdown(judgement: Judgement, against: str, said: str) -> str:
    """What is ``said`` of it all, a table for each panel, and what their words leave out."""
    findings = judgement.findings
    lines = [f"### spbench check: {said}"]
    for panel, rows in panels(findings):
        heads = columns(against, "now")
        lines += ["", f"**{_escaped(panel)}**", "", _row(heads)]
        lines.append(_row(["---", *["---:"] * (len(heads) - 1)]))
        lines += [_row(row) for row in rows]
    remarks = sentences(findings)
    lines += ["", *(f"- {_escaped(one)}" for one in remarks)] if remarks else []
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(_escaped, cells))} |"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def junit(judgement: Judgement, against: str, said: str) -> str:
    """A test for each metric of each case; see ``_kind`` for those that do not pass."""
    name = _printable(f"spbench check against {against}: {said}")
    suite = ET.Element("testsuite", name=name, tests=str(len(judgement.graded)))
    kinds = [_kind(graded) for graded in judgement.graded]
    for kind, name in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        suite.set(name, str(kinds.count(kind)))
    for graded in judgement.graded:
        finding = graded.finding
        test = ET.SubElement(suite, "testcase", classname=_printable(finding.panel))
        name = f"{finding.strategy} on {counted(finding.ranks, 'rank')}, {finding.metric}"
        test.set("name", _printable(name))
        if kind := _kind(graded):
            ET.SubElement(test, kind, message=_printable(_why(finding)))
    ET.indent(suite)
    return ET.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _kind(graded: Graded) -> str:
    """What stays open is skipped; what nothing can be compared with is an error."""
    if graded.outcome == "pass":
        return ""
    if graded.outcome == "fail":
        return "failure"
    return "error" if graded.finding.verdict in ("missing", "not comparable") else "skipped"


def _why(finding: Finding) -> str:
    return explained(finding) or f"{finding.metric} {finding.verdict}"


def _printable(text: str) -> str:
    """XML holds no control characters, however they are escaped."""
    return "".join(one if one.isprintable() else " " for one in text)
