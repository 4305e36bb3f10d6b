"""The dry run: cells of a run, and the bytes that each would send."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from rich.console import Console

from spbench.report import tables, units
from spbench.report.fit_width import Grid, fewer, folded
from spbench.report.progress import in_a_line
from spbench.text import counted
from spbench.workload.case import Cell
from spbench.workload.predicted import Prediction
from spbench.workload.traffic import PHASES

LABEL, NARROWEST = 16, 40
"""Columns of a field's name, and of the narrowest line that fields are folded to."""
COLUMNS = ("strategy", "ranks", "launch", "sharded axes", "fwd MiB", "bwd MiB", "grad MiB")
SPARE = ("sharded axes", "grad MiB", "bwd MiB")
"""Columns left out where not all fit, after that of the launches."""


def show_plan(
    cells: Sequence[Cell], predictions: Mapping[str, Prediction], *, as_json: bool
) -> None:
    """Prints the resolved workloads, and each cell with its predicted bytes.

    ``predictions``: by the keys of cases; none for a cell that cannot run.
    """
    rows = [_planned(cell, predictions.get(cell.case.key)) for cell in cells]
    if as_json:
        tables.print_json(rows)
        return
    out = tables.console()
    of_workloads: dict[str, list[dict[str, Any]]] = {}
    for cell, row in zip(cells, rows, strict=True):
        of_workloads.setdefault(in_a_line(cell.case.workload), []).append(row)
    if len(of_workloads) == 1:
        fields = cells[0].case.workload.model_dump(mode="json", by_alias=True)
        width = max(NARROWEST, tables.room(out))
        for name, value in fields.items():
            for line in folded(json.dumps(value), width, LABEL, label=f"{name}:", style=""):
                out.print(line, soft_wrap=True)
    for title, these in of_workloads.items():
        if len(of_workloads) > 1:
            tables.say(out, title)
        _show_cells(out, these)


def _show_cells(out: Console, rows: Sequence[dict[str, Any]]) -> None:
    """A line for each launch, or for each cell where the column of launches does not fit."""
    cells = [_cells(row) for row in rows]
    full = Grid(columns=COLUMNS, rows=cells, words=(0, 3), wraps=(3,))
    grids = [full]
    for spare in fewer(full.without("launch"), SPARE):
        once = dict.fromkeys(tuple(row) for row in spare.rows)
        grids.append(replace(spare, rows=list(once)))
    tables.show_fitting(out, grids)
    for remark in dict.fromkeys(filter(None, map(_remark, rows))):
        tables.say(out, remark)


def _cells(row: dict[str, Any]) -> list[str]:
    sent = [units.mebibytes(row["sent_bytes"].get(phase)) for phase in PHASES]
    return [*(str(row[name]) for name in ("strategy", "ranks", "launch", "sharded")), *sent]


def _remark(row: dict[str, Any]) -> str:
    """Why a cell cannot run, or the strategy's note on its figures."""
    remark = f"cannot run: {row['why_not']}" if row["why_not"] else row["note"]
    case = f"{row['strategy']} on {counted(row['ranks'], 'rank')}"
    return f"{case}: {remark}" if remark else ""


def _planned(cell: Cell, prediction: Prediction | None) -> dict[str, Any]:
    case, work = cell.case, cell.case.workload
    shape = ("axes", "batch", "dtype", "mode", "checkpointing", "optimizer")
    return {
        **{"case": case.key, "workload": work.name},
        **{name: getattr(work, name) for name in shape},
        **{name: getattr(case, name) for name in ("strategy", "ranks", "launch", "device", "kind")},
        **asdict(prediction or Prediction(sharded="", sent_bytes={}, note="")),
        "why_not": cell.why_not,
    }
