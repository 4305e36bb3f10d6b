"""What a check says in the end: on stdout, into files, and as its exit code."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path

import click

from spbench.analysis.verdict import Judgement
from spbench.errors import CANNOT_JUDGE, DONE, REGRESSION, UNFIT, Failure
from spbench.report import tables
from spbench.report.run_table import headline, show_findings

Export = Callable[[Judgement, str, str], str]
"""Of a judgement, against what, and what is said of it: a file's content."""


def report(
    judgement: Judgement,
    against: str,
    *,
    strict: bool,
    as_json: bool,
    exports: Mapping[Path, Export],
) -> int:
    """Shows it first, then writes the files: a full disk hides no regression."""
    said, code = headline(judgement, strict=strict), exit_code(judgement, strict=strict)
    if as_json:
        click.echo(json.dumps(_as_data(judgement, said, code), indent=2))
    else:
        show_findings(judgement.findings, against, "now")
        tables.say(tables.console(), said)
    for file, export in exports.items():
        try:
            file.write_text(export(judgement, against, said), encoding="utf-8")
        except OSError as error:
            raise Failure(f"cannot write to {file}: {error.strerror}", UNFIT) from None
    return code


def exit_code(judgement: Judgement, *, strict: bool) -> int:
    if judgement.of("fail"):
        return REGRESSION
    return DONE if judgement.is_decided(strict=strict) else CANNOT_JUDGE


def check_writable(file: Path) -> None:
    """Before anything is measured: a result that cannot be written is worth no hour."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Failure(f"cannot write to {file}: {error.strerror}", UNFIT) from None
    if file.is_dir() or not os.access(file if file.exists() else file.parent, os.W_OK):
        raise Failure(f"cannot write to {file}", UNFIT)


def _as_data(judgement: Judgement, said: str, code: int) -> dict[str, object]:
    findings = [
        asdict(one.finding) | {"ratio": one.finding.ratio, "outcome": one.grade}
        for one in judgement.graded
    ]
    return {"summary": said, "exit_code": code, "findings": findings}
