"""The doctor's diagnoses: a line for each check, its remedy below, and a summary."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from spbench.doctor.diagnosis import Diagnosis
from spbench.report import tables
from spbench.text import counted

STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red", "skipped": "dim"}
HEADS = ("status", "check", "found")
LEAST_FINDING = 30
"""Columns of a finding; in a terminal with fewer it begins below its check."""
INDENT = 3


def show_diagnoses(diagnoses: Sequence[Diagnosis]) -> None:
    """Prints the diagnoses, in a terminal folded to its width."""
    console = tables.console()
    for line in _lines(diagnoses, console):
        console.print(line, soft_wrap=True)
    tables.say(console, headline(diagnoses))


def _lines(diagnoses: Sequence[Diagnosis], console: Console) -> Iterator[Text]:
    widths = [
        max(map(len, (HEADS[0], *STYLES))),
        max(map(len, (HEADS[1], *(diagnosis.check for diagnosis in diagnoses)))),
    ]
    begin = sum(widths) + 7
    is_wide = not console.is_terminal or console.width - begin >= LEAST_FINDING
    indent = begin if is_wide else INDENT
    width = console.width - indent if console.is_terminal else 0
    if is_wide:
        rule = "-" if console.options.ascii_only else "─"
        yield Text(_row(*HEADS, widths), "bold")
        yield Text(f" {rule * (begin + min(width or LEAST_FINDING, LEAST_FINDING) - 1)}")
    for diagnosis in diagnoses:
        lines = _folded(diagnosis, width)
        first = lines.pop(0) if is_wide else ""
        row = Text(_row(diagnosis.status, diagnosis.check, first, widths).rstrip())
        row.stylize(STYLES[diagnosis.status], 1, 1 + len(diagnosis.status))
        yield row
        for line in lines:
            yield Text(f"{' ' * indent}{line}")
    yield Text()


def _row(status: str, check: str, finding: str, widths: Sequence[int]) -> str:
    return f" {status:<{widths[0]}}   {check:<{widths[1]}}   {finding}"


def _folded(diagnosis: Diagnosis, width: int) -> list[str]:
    """The finding, then the remedy; not folded where ``width`` is 0."""
    texts = [diagnosis.found]
    if diagnosis.remedy:
        texts.append(f"remedy: {diagnosis.remedy}")
    if not width:
        return texts
    return [line for text in texts for line in textwrap.wrap(text, width, break_on_hyphens=False)]


def headline(diagnoses: Sequence[Diagnosis]) -> str:
    """Sums up all diagnoses in one line."""
    failed = [diagnosis.check for diagnosis in diagnoses if diagnosis.status == "fail"]
    warned = [diagnosis.check for diagnosis in diagnoses if diagnosis.status == "warn"]
    warnings = f"; {counted(len(warned), 'warning')}: {', '.join(warned)}" if warned else ""
    return f"unfit: {', '.join(failed)}{warnings}" if failed else f"fit{warnings}"
