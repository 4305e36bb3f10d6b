"""The outcome of a check for continuous integration, as JUnit's XML."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from spbench.analysis.verdict import Graded, Judgement
from spbench.report.run_table import explained
from spbench.text import counted


def junit(judgement: Judgement, against: str, headline: str, *, strict: bool) -> str:
    """A test for each metric of each case; see ``_kind`` for those that do not pass. Where the
    check cannot judge and no test is red, one more test, of all cases, is an error."""
    tests = [_test(graded) for graded in judgement.graded]
    is_red = any(kind in ("failure", "error") for _, _, kind, _ in tests)
    if not is_red and not judgement.is_decided(strict=strict):
        tests.append(("spbench check", "all cases", "error", headline))
    kinds = [kind for _, _, kind, _ in tests]
    name = _printable(f"spbench check against {against}: {headline}")
    suite = ET.Element("testsuite", name=name, tests=str(len(tests)))
    for kind, name in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        suite.set(name, str(kinds.count(kind)))
    for panel, title, kind, why in tests:
        test = ET.SubElement(suite, "testcase", classname=_printable(panel))
        test.set("name", _printable(title))
        if kind:
            ET.SubElement(test, kind, message=_printable(why))
    ET.indent(suite)
    return ET.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _test(graded: Graded) -> tuple[str, str, str, str]:
    """Panel, title, kind and message of a test."""
    finding = graded.finding
    title = f"{finding.strategy} on {counted(finding.ranks, 'rank')}, {finding.metric}"
    why = explained(finding) or f"{finding.metric} {finding.verdict}"
    why += f"; accepted: {graded.note}" if graded.grade == "accepted" else ""
    return finding.panel, title, _kind(graded), why


def _kind(graded: Graded) -> str:
    """What is inconclusive or accepted is skipped; what cannot be compared is an error."""
    if graded.grade in ("pass", "fail"):
        return "failure" if graded.grade == "fail" else ""
    if graded.grade == "accepted":
        return "skipped"
    return "error" if graded.finding.verdict in ("missing", "not comparable") else "skipped"


def _printable(text: str) -> str:
    """XML holds no control characters, however they are escaped."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
