"""The table of ``verify --wire``: what was counted beside what the kernel saw."""

from __future__ import annotations

from collections.abc import Sequence

from spbench.launch.wire_checks import WireVerdict
from spbench.report import units
from spbench.report.table_width import Grid, fewer, fitting, left_out
from spbench.report.tables import console, room, say, show_table
from spbench.text import counted

COLUMNS = ("strategy", "workload", "ranks", "counted MiB", "wire MiB", "wire / counted", "outcome")
SPARE = ("workload", "counted MiB", "wire MiB")
TITLE = "bytes of all ranks, counted and as the kernel's interface sent them"


def show_wire(verdicts: Sequence[WireVerdict]) -> None:
    """A line for each; below it why, of those that did not pass."""
    out = console()
    rows = [
        [
            one.strategy,
            one.workload,
            str(one.ranks),
            units.mebibytes(one.counted_bytes),
            units.mebibytes(one.wire_bytes),
            units.BLANK if one.wire_over_counted is None else f"{one.wire_over_counted:.4f}",
            one.outcome,
        ]
        for one in verdicts
    ]
    grid = Grid(columns=COLUMNS, rows=rows, words=(0, 1, len(COLUMNS) - 1))
    grid = fitting(fewer(grid, SPARE), room(out))
    show_table(out, TITLE, grid)
    if grid.lacks:
        say(out, left_out(grid.lacks))
    for one in verdicts:
        if one.reason:
            where = f"{one.strategy} on {counted(one.ranks, 'rank')}, {one.workload}"
            say(out, f"{where}: {one.outcome}: {one.reason}")
