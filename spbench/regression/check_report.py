"""The verdict of a check: on stdout, in files, as JUnit's XML for continuous integration, and as an
exit code.
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from xml.etree import ElementTree as ET

import click

from spbench.analysis.verdict import Graded, Judgement
from spbench.errors import CANNOT_JUDGE, DONE, REGRESSION, UNFIT, Failure, writing
from spbench.regression.base_and_head import Checked
from spbench.report import tables
from spbench.report.run_table import explained, headline, show_findings
from spbench.text import counted

Export = Callable[[Checked, str, str], str]
"""The content of a file, made of a check, what head was checked against, and the headline."""


def report(
    checked: Checked, against: str, *, strict: bool, as_json: bool, exports: Mapping[Path, Export]
) -> int:
    """Prints the verdict and then writes files: a full disk does not hide a regression.

    Parameters
    ----------
    checked:
        The judgement, and the two runs.
    against:
        The baseline or the commit, as the user named it.
    strict:
        Whether a case that stays inconclusive does not pass.
    as_json:
        Whether stdout gets JSON in place of a table.
    exports:
        Files to write, and what makes their content.

    Returns
    -------
    int
        The exit code.
    """
    judgement = checked.judgement
    summary, code = headline(judgement, strict=strict), exit_code(judgement, strict=strict)
    if as_json:
        click.echo(json.dumps(_as_data(judgement, summary, code), indent=2))
    else:
        show_findings(judgement.findings, against, "now")
        tables.say(tables.console(), summary)
    for file, export in exports.items():
        with writing(file):
            file.write_text(export(checked, against, summary), encoding="utf-8")
    return code


def exit_code(judgement: Judgement, *, strict: bool) -> int:
    if judgement.of("fail"):
        return REGRESSION
    return DONE if judgement.is_decided(strict=strict) else CANNOT_JUDGE


def check_writable(file: Path) -> None:
    """Raises Failure before an hour is spent on a result that cannot be written."""
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
    if file.is_dir() or not os.access(file if file.exists() else file.parent, os.W_OK):
        raise Failure(f"cannot write to {file}", UNFIT)


def _as_data(judgement: Judgement, summary: str, code: int) -> dict[str, object]:
    findings = [
        asdict(graded.finding) | {"ratio": graded.finding.ratio, "outcome": graded.grade}
        for graded in judgement.graded
    ]
    return {"summary": summary, "exit_code": code, "findings": findings}


def junit(checked: Checked, against: str, headline: str, *, strict: bool) -> str:
    """The check as JUnit's XML: a test for each metric of each case.

    Where the check cannot judge and no test is red, one more test, of all cases, is an error.

    Parameters
    ----------
    checked:
        The judgement, and the two runs.
    against:
        The baseline or the commit, as the user named it.
    headline:
        The outcome in one line.
    strict:
        Whether a case that stays inconclusive does not pass.
    """
    judgement = checked.judgement
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
    title = f"{finding.strategy} on {counted(finding.ranks, 'rank')}, {finding.what}"
    why = explained(finding) or f"{finding.what} {finding.verdict}"
    return finding.panel, title, _kind(graded), why


def _kind(graded: Graded) -> str:
    """What is inconclusive is skipped; what cannot be compared is an error."""
    if graded.grade in ("pass", "fail"):
        return "failure" if graded.grade == "fail" else ""
    return "error" if graded.finding.verdict in ("missing", "not comparable") else "skipped"


def _printable(text: str) -> str:
    """XML holds no control characters, however they are escaped."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
