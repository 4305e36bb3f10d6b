"""What a run would do: its cells, and the bytes that each would send."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click
from rich.table import Table

from spbench.launch.plan import Cell
from spbench.report import tables, units
from spbench.report.screen import in_a_line
from spbench.strategies.registry import load


def show_plan(cells: Sequence[Cell], *, as_json: bool) -> None:
    """What a run would do: its resolved workloads, and each cell with its predicted bytes."""
    rows: dict[str, dict[str, Any]] = {}
    for cell in cells:
        if cell.case.key not in rows:
            rows[cell.case.key] = _planned(cell)
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
            out.print(f"{name + ':':15s} {json.dumps(value)}", soft_wrap=True)
    for title, these in of_workloads.items():
        if len(of_workloads) > 1:
            out.print(title, soft_wrap=True)
        out.print(_plan_table(these))


def _plan_table(rows: Sequence[dict[str, Any]]) -> Table:
    columns = ("strategy", "ranks", "launch", "sharded axes", "fwd MiB", "bwd MiB", "grad MiB", "")
    shown = [
        [
            str(row["strategy"]),
            str(row["ranks"]),
            str(row["launch"]),
            str(row["sharded"]),
            *(
                units.mebibytes(row["sent_bytes"].get(p))
                for p in ("forward", "backward", "gradients")
            ),
            str(row["why_not"] or row["note"]),
        ]
        for row in rows
    ]
    return tables.table("", columns, shown)


def _planned(cell: Cell) -> dict[str, Any]:
    from spbench.comm.transfer import by_busiest

    case, strategy = cell.case, load(cell.case.strategy)
    sharded, sent, note = "", {}, ""
    if cell.why_not is None:
        layout = strategy.layout(case.workload, case.ranks)
        axes = layout[: len(case.workload.block)]
        sharded = axes[0] if len(set(layout)) == 1 else " ".join(axes)
        transfers = strategy.traffic(case.workload, case.ranks)
        sent = by_busiest(transfers, case.ranks)
        note = strategy.notes(case.workload, case.ranks)
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
        "sharded": sharded,
        "sent_bytes": sent,
        "note": note,
        "why_not": cell.why_not,
    }
