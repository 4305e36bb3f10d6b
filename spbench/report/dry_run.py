"""What a run would do: its cells, and the bytes that each would send."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from spbench.report import tables, units
from spbench.report.fit_width import Grid, fewer, folded
from spbench.report.progress import in_a_line
from spbench.text import counted
from spbench.workload.case import Cell
from spbench.workload.predicted import Prediction
from spbench.workload.traffic import PHASES

LABEL, NARROWEST = 16, 40
"""Columns of a field's name, and of a line that fields are broken for."""
COLUMNS = ("strategy", "ranks", "launch", "sharded axes", "fwd MiB", "bwd MiB", "grad MiB")
SPARE = ("sharded axes", "grad MiB", "bwd MiB")
"""What goes where not all fits, behind the launches."""


def show_plan(
    cells: Sequence[Cell], predictions: Mapping[str, Prediction], *, as_json: bool
) -> None:
    """Prints the resolved workloads, and each cell with its predicted bytes.

    ``predictions``: by the keys of cases; a cell that cannot run has none.
    """
    rows: dict[str, dict[str, Any]] = {}
    for cell in cells:
        if cell.case.key not in rows:
            rows[cell.case.key] = _planned(cell, predictions.get(cell.case.key))
    every = [rows[cell.case.key] | {"launch": cell.case.launch} for cell in cells]
    if as_json:
        click.echo(json.dumps(every, indent=2))
        return
    out = tables.console()
    of_workloads: dict[str, list[dict[str, Any]]] = {}
    for cell, row in zip(cells, every, strict=True):
        of_workloads.setdefault(in_a_line(cell.case.workload), []).append(row)
    if len(of_workloads) == 1:
        workload = cells[0].case.workload.model_dump(mode="json", by_alias=True)
        for name, value in workload.items():
            _show_field(out, f"{name}:", json.dumps(value))
    for title, these in of_workloads.items():
        if len(of_workloads) > 1:
            tables.say(out, title)
        _show_cells(out, these)


def _show_field(out: Console, label: str, value: str) -> None:
    """A line; in a terminal as many as it takes, broken between words."""
    lines = [label.ljust(LABEL) + value]
    if out.is_terminal:
        lines = [
            line.plain for line in folded(value, max(NARROWEST, out.width), LABEL, label=label)
        ]
    for line in lines:
        out.print(Text(line), soft_wrap=True)


def _show_cells(out: Console, rows: Sequence[dict[str, Any]]) -> None:
    """A line for each launch, or for each cell where there is no room to tell launches apart."""
    cells = [_cells(row) for row in rows]
    full = Grid(columns=COLUMNS, rows=cells, words=(0, 3), wraps=(3,))
    grids = [full]
    for spare in fewer(full.without("launch"), SPARE):
        once = dict.fromkeys(tuple(row) for row in spare.rows)
        grids.append(replace(spare, rows=list(once)))
    tables.show_fitting(out, grids)
    for said in dict.fromkeys(filter(None, map(_remark, rows))):
        tables.say(out, said)


def _cells(row: dict[str, Any]) -> list[str]:
    sent = [units.mebibytes(row["sent_bytes"].get(phase)) for phase in PHASES]
    return [*(str(row[name]) for name in ("strategy", "ranks", "launch", "sharded")), *sent]


def _remark(row: dict[str, Any]) -> str:
    """What the figures do not say: why there are none, or what the strategy does besides."""
    whom = f"{row['strategy']} on {counted(row['ranks'], 'rank')}"
    if row["why_not"]:
        return f"{whom}: cannot run: {row['why_not']}"
    return f"{whom}: {row['note']}" if row["note"] else ""


def _planned(cell: Cell, prediction: Prediction | None) -> dict[str, Any]:
    case = cell.case
    return {
        "case": case.key,
        "workload": case.workload.name,
        "axes": case.workload.axes,
        "batch": case.workload.batch,
        "dtype": case.workload.dtype,
        "mode": case.workload.mode,
        "checkpointing": case.workload.checkpointing,
        "strategy": case.strategy,
        "ranks": case.ranks,
        "launch": case.launch,
        "device": case.device,
        "kind": case.kind,
        "sharded": prediction.sharded if prediction else "",
        "sent_bytes": prediction.sent_bytes if prediction else {},
        "note": prediction.note if prediction else "",
        "why_not": cell.why_not,
    }
