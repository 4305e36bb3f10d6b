"""What the doctor found: a line for each check, the remedy below it, a word for the whole."""

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
LEAST_FOUND = 30
"""Columns; with fewer a line of what was found begins below its check."""


def show_diagnoses(found: Sequence[Diagnosis]) -> None:
    """On stdout. In a terminal folded to its width, elsewhere in lines however long."""
    out = tables.console()
    for line in _lines(found, out):
        out.print(line, soft_wrap=True)
    tables.say(out, headline(found))


def _lines(found: Sequence[Diagnosis], out: Console) -> Iterator[Text]:
    widths = [
        max(map(len, (HEADS[0], *STYLES))),
        max(map(len, (HEADS[1], *(one.check for one in found)))),
    ]
    begin = sum(widths) + 7
    is_wide = not out.is_terminal or out.width - begin >= LEAST_FOUND
    width = (out.width - (begin if is_wide else 3)) if out.is_terminal else 0
    if is_wide:
        rule = "-" if out.options.ascii_only else "─"
        yield Text(_row(*HEADS, widths), "bold")
        yield Text(f" {rule * (begin + min(width or LEAST_FOUND, LEAST_FOUND) - 1)}")
    for one in found:
        first, *more = _folded(one, width)
        row = _row(one.status, one.check, first if is_wide else "", widths).rstrip()
        line = Text(row)
        line.stylize(STYLES[one.status], 1, 1 + len(one.status))
        yield line
        for text in more if is_wide else (first, *more):
            yield Text(f"{' ' * (begin if is_wide else 3)}{text}")
    yield Text()


def _row(status: str, check: str, found: str, widths: Sequence[int]) -> str:
    return f" {status:<{widths[0]}}   {check:<{widths[1]}}   {found}"


def _folded(one: Diagnosis, width: int) -> list[str]:
    """What was found, then the remedy; not folded where ``width`` is 0."""
    said = [one.found, *([f"remedy: {one.remedy}"] if one.remedy else [])]
    if not width:
        return said
    return [line for text in said for line in textwrap.wrap(text, width, break_on_hyphens=False)]


def headline(found: Sequence[Diagnosis]) -> str:
    """The whole in one line."""
    failed = [one.check for one in found if one.status == "fail"]
    warned = [one.check for one in found if one.status == "warn"]
    doubts = f"; {counted(len(warned), 'warning')}: {', '.join(warned)}" if warned else ""
    if failed:
        return f"unfit: {', '.join(failed)}{doubts}"
    return f"fit{doubts}"
