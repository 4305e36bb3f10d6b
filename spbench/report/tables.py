"""Tables: rich in a terminal, and no wider than it; aligned plain text elsewhere."""

import json
import shutil
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TextIO, final

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from spbench.report import units
from spbench.report.fit_width import Grid, by_panel, fewer, fitting, left_out, line_width, width_of
from spbench.results.hand_over import STATUSES, VerifyResult
from spbench.text import counted, grouped

PLAIN_WIDTH = 200
OUTCOMES = ("passed", "WRONG", "FAILED", "declined")
SELDOM = "FAILED"
"""An outcome that has a column only where a check had it."""
UNRELIABLE = r"(?<!\S)~\S+( %)?|\binconclusive\b"
BAD = rf"\b({'|'.join(STATUSES[1:])}|WRONG|slower|broke|missing)\b"
"""Words in cells of a table, as regular expressions."""
SPARE = ("dtype", "tolerance", "declined", "output", "gradients")
"""Columns of verdicts left out where not all fit, in this order."""


@final
class Output(Console):
    """A console that raises when its reader has gone, where rich would exit with 1."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        raise BrokenPipeError


def console(file: TextIO | None = None) -> Console:
    """Styled on a terminal; elsewhere no escape codes, and lines that are not wrapped."""
    stream = file or sys.stdout
    made = Output(
        file=stream,
        highlight=False,
        width=None if stream.isatty() else PLAIN_WIDTH,
        emoji=False,
        markup=False,
    )
    if made.is_dumb_terminal:
        made.size = shutil.get_terminal_size()  # rich assumes 80 columns
    return made


def room(out: Console) -> int:
    """Characters of a line; without limit elsewhere than in a terminal."""
    return out.width if out.is_terminal else sys.maxsize


def say(out: Console, *sentences: str) -> None:
    """Prints sentences, in a terminal folded between words; at once, since rich is slow."""
    if sentences:
        _print(out, Text("\n".join(sentences)), soft_wrap=False)


def _print(out: Console, text: Text, *, soft_wrap: bool) -> None:
    """Prints a text; where it goes to no terminal as it is, since rich takes ten times as long."""
    if out.is_terminal:
        out.print(text, soft_wrap=soft_wrap)
    else:
        out.file.write(f"{text.plain.expandtabs()}\n")


def table(grid: Grid, title: str = "", widths: Sequence[int] | None = None) -> Table:
    """A table of columns of these ``widths``; without them words may be cut."""
    made = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for i, column in enumerate(grid.columns):
        side: Literal["left", "right"] = "left" if i in grid.words else "right"
        made.add_column(column, justify=side, overflow="fold", width=widths[i] if widths else None)
    for row in grid.rows:
        made.add_row(*(_coloured(Text(cell)) for cell in row))
    return made


def _coloured(text: Text) -> Text:
    """Figures that noise makes unreliable in yellow, what failed or is worse in red."""
    text.highlight_regex(UNRELIABLE, "yellow")
    text.highlight_regex(BAD, "bold red")
    return text


def show_table(out: Console, title: str, grid: Grid) -> None:
    """Prints a table, by itself where nothing breaks: rich takes a hundred times as long, for 400
    rows of 14 columns more than a second."""
    widths = grid.whole
    if title and width_of(title) > room(out):
        say(out, title)
        title = ""
    if line_width(widths) > room(out) or any("\n" in head for head in grid.columns):
        out.print(table(grid, title, grid.broken(room(out))))
        return
    lines = [_aligned(cells, widths, grid.words) for cells in (grid.columns, *grid.rows)]
    lines.insert(1, f" {'─' * (line_width(widths) - 2)} ")
    if out.options.ascii_only:
        lines[1] = lines[1].replace("─", "-")
    text = Text("\n".join([title, "", *lines, ""] if title else ["", *lines, ""]))
    if out.is_terminal:
        text.highlight_words([title] if title else [], "italic", case_sensitive=True)
        text.highlight_words([lines[0]], "bold")
        _coloured(text)
    _print(out, text, soft_wrap=True)


def show_fitting(out: Console, grids: Sequence[Grid]) -> None:
    """Prints the first of ``grids`` that fits, and below it the columns that it lacks."""
    grid = fitting(grids, room(out))
    show_table(out, "", grid)
    if grid.lacks:
        say(out, left_out(grid.lacks))


def show_panels(out: Console, grids: Sequence[Grid], panels: Sequence[str]) -> Sequence[str]:
    """Prints a table for each panel, all as the first of ``grids`` that fits; returns the columns
    that it lacks. ``panels``: the panel of each row."""
    grid = fitting(grids, room(out))
    for title, part in by_panel(grid, panels).items():
        show_table(out, title, part)
    return grid.lacks


def print_json(data: object) -> None:
    """Prints data on stdout, with fractions of bytes rounded."""
    click.echo(json.dumps(data, indent=2, default=round))


def print_paths(paths: Sequence[Path], *, as_json: bool) -> None:
    """Prints the files that a command wrote."""
    if as_json:
        print_json([*map(str, paths)])
    else:
        click.echo("\n".join(map(str, paths)))


def print_data(data: Sequence[Mapping[str, Any]], form: str) -> None:
    """Prints rows as ``json``, or as ``csv`` with a column for each part of what is nested."""
    if form == "json":
        print_json(data)
        return
    import pandas  # not wanted before ranks start

    click.echo(pandas.json_normalize([*map(dict, data)]).to_csv(index=False), nl=False)


def _aligned(cells: Sequence[str], widths: Sequence[int], words: Collection[int]) -> str:
    """Three spaces between columns; ``words`` to the left, figures to the right."""
    padded = []
    for i, (cell, width) in enumerate(zip(cells, widths, strict=True)):
        blank = " " * (width - width_of(cell))
        padded.append(cell + blank if i in words else blank + cell)
    return f" {'   '.join(padded)} "


def _largest(checks: Sequence[VerifyResult], field: str) -> float | None:
    """The largest value of a field; None where no check knows it."""
    values = [getattr(check, field) for check in checks]
    return max((value for value in values if value is not None), default=None)


def show_verdicts(verdicts: Sequence[VerifyResult]) -> None:
    """Prints the worst check of each strategy, dtype and ranks, then those that did not pass."""
    cases = grouped(verdicts, lambda verdict: (verdict.strategy, verdict.dtype, verdict.ranks))
    rows, had = [], {verdict.outcome for verdict in verdicts}
    outcomes = [kind for kind in OUTCOMES if kind != SELDOM or kind in had]
    for (strategy, dtype, ranks), checks in cases.items():
        counts = [sum(check.outcome == kind for check in checks) for kind in outcomes]
        errors = [_largest(checks, n) for n in ("output_error", "gradient_error", "tolerance")]
        rows.append([strategy, dtype, str(ranks), *map(str, counts), *map(units.error, errors)])
    columns = ("strategy", "dtype", "ranks", *outcomes, "output", "gradients", "tolerance")
    out = console()
    say(out, "largest relative errors against one device")
    show_fitting(out, fewer(Grid(columns=columns, rows=rows, words=(0, 1)), SPARE))
    reduced = dict.fromkeys(v.workload for v in verdicts if v.is_reduced)
    if reduced:
        out.print(f"too large for one device here: {', '.join(reduced)}", soft_wrap=True)
    for verdict in verdicts:
        if verdict.outcome != "passed":
            case = f"{verdict.strategy} on {counted(verdict.ranks, 'rank')}, {verdict.workload}"
            sharp = f" (logits x {verdict.sharpness**2:g})" if verdict.sharpness > 1 else ""
            out.print(f"{case}{sharp}: {verdict.outcome}: {verdict.reason}", soft_wrap=True)
