"""Tables of what was measured: rich in a terminal, aligned plain text elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TextIO

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from spbench.judge.side_by_side import Line
from spbench.judge.words import in_words
from spbench.launch.checks import Verdict
from spbench.report import units
from spbench.workload.words import counted

PLAIN_WIDTH = 200
OUTCOMES = ("passed", "WRONG", "declined")


def console(file: TextIO | None = None) -> Console:
    """Styled on a terminal; elsewhere no escape codes, and lines that are not wrapped."""
    stream = file or sys.stdout
    return Console(
        file=stream,
        highlight=False,
        width=None if stream.isatty() else PLAIN_WIDTH,
        emoji=False,
        markup=False,
    )


def say(out: Console, sentence: str) -> None:
    """Folded between words in a terminal; elsewhere a line, however long."""
    out.print(Text(sentence), soft_wrap=not out.is_terminal)


def table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1
) -> Table:
    """Columns from ``left`` on are right-aligned figures."""
    made = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for i, column in enumerate(columns):
        made.add_column(
            column, justify="left" if i < left else "right", no_wrap=i < left, overflow="fold"
        )
    for row in rows:
        made.add_row(*(Text(cell) for cell in row))
    return made


def show_table(
    out: Console,
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    left: int = 1,
) -> None:
    """The same to look at as ``table``, and much faster to make where nothing needs folding."""
    widths = _widths(columns, rows)
    whole = width_of(columns, rows)
    if whole > out.width or cell_len(title) > whole:
        out.print(table(title, columns, rows, left=left))
        return
    lines = [_aligned(cells, widths, left) for cells in (columns, *rows)]
    lines.insert(1, f" {'─' * (whole - 2)} ")
    if out.options.ascii_only:
        lines[1] = lines[1].replace("─", "-")
    text = Text("\n".join([title, "", *lines, ""] if title else ["", *lines, ""]))
    if out.is_terminal:
        text.highlight_words([title] if title else [], "italic", case_sensitive=True)
        text.highlight_words([lines[0]], "bold")
    out.print(text, soft_wrap=True)


def width_of(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Characters of a line that nothing is folded in."""
    widths = _widths(columns, rows)
    return sum(widths) + 3 * len(widths) - 1


def _widths(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(cell_len, cells)) for cells in zip(columns, *rows, strict=True)]


def _aligned(cells: Sequence[str], widths: Sequence[int], left: int) -> str:
    """Three spaces between columns; from ``left`` on to the right."""
    padded = []
    for i, (cell, width) in enumerate(zip(cells, widths, strict=True)):
        blank = " " * (width - cell_len(cell))
        padded.append(cell + blank if i < left else blank + cell)
    return f" {'   '.join(padded)} "


FULL = (
    "strategy",
    "ranks",
    "step ms",
    "95 %",
    "speed-up",
    "tokens/s",
    "compute ms",
    "exposed ms",
    "peak MiB",
    "fwd MiB",
    "bwd MiB",
    "grad MiB",
    "gate error",
)
COLUMNS_BY_WIDTH = {
    120: FULL,
    96: (*FULL[:3], "speed-up", "exposed ms", "peak MiB", "sent MiB", "gate error"),
    72: (*FULL[:3], "speed-up", "sent MiB", "gate error"),
    0: ("strategy", "ranks", "step ms", "gate error"),
}
"""What is shown in a terminal of at least that many columns; wider figures would break."""


def comparison(
    lines: Sequence[Line], width: int
) -> tuple[tuple[str, ...], dict[str, list[list[str]]]]:
    """Columns, and the rows of each panel; bytes are what one rank sends in a step."""
    columns = next(shown for least, shown in COLUMNS_BY_WIDTH.items() if width >= least)
    panels: dict[str, list[list[str]]] = {}
    for line in lines:
        cells = _cells(line)
        rows = panels.setdefault(line.panel, [])
        rows.append([cells.get(column, units.BLANK) for column in columns])
    return columns, panels


def _cells(line: Line) -> dict[str, str]:
    known = {"strategy": line.strategy, "ranks": str(line.ranks), "gate error": gate_cell(line)}
    if line.status != "ok":
        return known | {"step ms": line.status}
    step = line.step_ms
    sent = line.sent_bytes if line.kind == "measured" else line.predicted_bytes
    total = sum(count for count in sent.values() if count is not None)
    if step is not None and line.launches > 1:
        mark = "" if step.is_interval else "*"
        known["95 %"] = f"{units.milliseconds(step.low)}..{units.milliseconds(step.high)}{mark}"
    return known | {
        "step ms": units.milliseconds(step.median if step else None),
        "speed-up": speedup_cell(line),
        "tokens/s": units.count_of(line.tokens_per_s),
        "compute ms": units.milliseconds(line.compute_ms),
        "exposed ms": units.milliseconds(line.exposed_comm_ms),
        "peak MiB": units.mebibytes(line.peak_allocated_bytes),
        "sent MiB": units.mebibytes(total),
        "fwd MiB": units.mebibytes(sent["forward"]),
        "bwd MiB": units.mebibytes(sent["backward"]),
        "grad MiB": units.mebibytes(sent["gradients"]),
    }


def speedup_cell(line: Line) -> str:
    """1.12x, and its interval where there is one."""
    shown = units.ratio(line.speedup)
    found = line.to_reference
    if line.speedup in (None, 1.0) or found is None or not found.low or not found.high:
        return shown
    return f"{shown} ({1 / found.high:.2f}..{1 / found.low:.2f})"


def gate_cell(line: Line) -> str:
    """The larger relative error, and whether it passed."""
    found = [e for e in (line.output_error, line.gradient_error) if e is not None]
    shown = units.error(max(found)) if found else units.BLANK
    return f"{shown} WRONG" if line.gate == "failed" else shown


def failures(lines: Sequence[Line]) -> list[str]:
    """A sentence for each case of which a launch did not finish, or was disturbed."""
    several = len({line.panel for line in lines}) > 1
    return [
        f"{f'{line.panel}: ' if several else ''}{line.strategy} on {counted(line.ranks, 'rank')}: "
        f"{line.reason if line.status == 'ok' else f'{line.status}. {line.reason}'}"
        for line in lines
        if line.status != "ok" or line.reason
    ]


def show_verdicts(verdicts: Sequence[Verdict]) -> None:
    """One line for each strategy, dtype and ranks: the worst of its checks. Then the rest."""
    cases: dict[tuple[str, str, int], list[Verdict]] = {}
    for verdict in verdicts:
        cases.setdefault((verdict.strategy, verdict.dtype, verdict.ranks), []).append(verdict)
    rows = []
    for (strategy, dtype, ranks), found in cases.items():
        counts = [sum(one.outcome == kind for one in found) for kind in OUTCOMES]
        errors = [
            max((e for one in found if (e := getattr(one, name)) is not None), default=None)
            for name in ("output_error", "gradient_error", "tolerance")
        ]
        rows.append([strategy, dtype, str(ranks), *map(str, counts), *map(units.error, errors)])
    columns = ("strategy", "dtype", "ranks", *OUTCOMES, "output", "gradients", "tolerance")
    out = console()
    out.print(table("largest relative errors against one device", columns, rows, left=2))
    reduced = dict.fromkeys(v.workload for v in verdicts if v.workload.endswith("(reduced)"))
    if reduced:
        out.print(f"too large for one device here: {', '.join(reduced)}", soft_wrap=True)
    for one in verdicts:
        if one.outcome != "passed":
            sharp = f" (logits x {one.sharpness**2:g})" if one.sharpness > 1 else ""
            out.print(
                f"{one.strategy} on {counted(one.ranks, 'rank')}, {one.workload}{sharp}: "
                f"{one.outcome}: {one.reason}",
                soft_wrap=True,
            )


def show_comparison(lines: Sequence[Line]) -> None:
    """The comparison on stdout; below it in words, and what did not finish and why."""
    out = console()
    columns, panels = comparison(lines, out.width)
    for panel, rows in panels.items():
        show_table(out, panel, columns, rows)
    ranges = any(one.step_ms and not one.step_ms.is_interval and one.launches > 1 for one in lines)
    note = ["* two launches: their range, no interval"] if ranges else []
    for sentence in [*in_words(lines), *failures(lines), *note]:
        say(out, sentence)
