"""Reports the verdict of a check: on stdout, in files, and as an exit code."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path

import click

from spbench.analysis.verdict import Judgement
from spbench.errors import CANNOT_JUDGE, DONE, REGRESSION, UNFIT, Failure
from spbench.regression.measurement import Checked
from spbench.report import tables
from spbench.report.run_table import acceptance_sentences, headline, show_findings

Export = Callable[[Checked, str, str], str]
"""The content of a file, made of a check, what head was checked against, and the headline."""


def report(
    checked: Checked,
    against: str,
    *,
    strict: bool,
    as_json: bool,
    exports: Mapping[Path, Export],
) -> int:
    """Prints first and writes files then: a full disk does not hide a regression."""
    judgement = checked.judgement
    summary, code = headline(judgement, strict=strict), exit_code(judgement, strict=strict)
    if as_json:
        click.echo(json.dumps(_as_data(judgement, summary, code), indent=2))
    else:
        show_findings(judgement.findings, against, "now")
        tables.say(tables.console(), *acceptance_sentences(judgement), summary)
    for file, export in exports.items():
        try:
            file.write_text(export(checked, against, summary), encoding="utf-8")
        except OSError as error:
            raise Failure(f"cannot write to {file}: {error.strerror}", UNFIT) from None
    return code


def exit_code(judgement: Judgement, *, strict: bool) -> int:
    if judgement.of("fail"):
        return REGRESSION
    return DONE if judgement.is_decided(strict=strict) else CANNOT_JUDGE


def check_writable(file: Path) -> None:
    """Raises Failure before an hour is spent on a result that cannot be written."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Failure(f"cannot write to {file}: {error.strerror}", UNFIT) from None
    if file.is_dir() or not os.access(file if file.exists() else file.parent, os.W_OK):
        raise Failure(f"cannot write to {file}", UNFIT)


def _as_data(judgement: Judgement, summary: str, code: int) -> dict[str, object]:
    findings = [
        asdict(graded.finding)
        | {"ratio": graded.finding.ratio, "outcome": graded.grade, "note": graded.note}
        for graded in judgement.graded
    ]
    remarks = [*judgement.remarks]
    return {"summary": summary, "exit_code": code, "findings": findings, "remarks": remarks}
