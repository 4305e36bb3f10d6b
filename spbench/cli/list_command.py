"""``spbench list``: strategies, workloads, sweeps or runs."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from typing import Any

import click
from rich.table import Table

from spbench.cli import choices
from spbench.cli.exits import Failure
from spbench.cli.runs import all_runs
from spbench.report import units
from spbench.report.tables import console, table
from spbench.results.reading import read_rows
from spbench.strategies.registry import SUMMARIES, named, places
from spbench.workload.catalogue import find, names
from spbench.workload.cost import parameters, step_flops
from spbench.workload.sweep_file import load_sweep
from spbench.workload.yaml_data import WorkloadError

LEFT = {"strategies": 2, "workloads": 2, "sweeps": 3, "runs": 2}
"""What can be listed, and how many columns of it are words."""
SOURCE = 64
"""Characters of a source in a table; --json has all of it."""
HEADS = {"tokens": "tokens\na step"}
SHORT = {"parameters": "params", "activation_bytes": "M MiB"}
COLUMNS = {
    "workloads": (
        *("workload", "axes", "tokens", "parameters", "activation_bytes"),
        *("hidden/heads/depth", "step_flops", "dtype"),
    ),
}
"""Of a table, where --json has more; with a / between them, several fields are one column."""
NARROWER: dict[str, tuple[tuple[int, dict[str, str]], ...]] = {
    "workloads": ((6, {}), (6, SHORT), (5, SHORT)),
    "sweeps": ((5, {}), (4, {})),
}
"""How many columns are shown where not all fit, under which other names."""


@click.command("list", short_help="List strategies, workloads, sweeps or runs.")
@click.argument("what", type=click.Choice(list(LEFT)))
@choices.json_option
def command(what: str, as_json: bool) -> None:
    """List strategies, workloads, sweeps or runs."""
    listed = {"strategies": _strategies, "workloads": _workloads, "sweeps": _sweeps, "runs": _runs}
    rows = listed[what]()
    if as_json:
        click.echo(json.dumps(rows, indent=2))
    elif not rows:
        click.echo(f"no {what} yet")
    else:
        out = console()
        columns = COLUMNS.get(what, tuple(rows[0]))
        tables = [
            _table(rows, columns[:n], names, LEFT[what])
            for n, names in ((len(columns), {}), *NARROWER.get(what, ()))
        ]
        unbounded = out.options.update(max_width=10_000)
        fits = (one for one in tables if out.measure(one, options=unbounded).maximum <= out.width)
        out.print(next(fits, tables[-1]))


def _table(
    rows: list[dict[str, Any]], columns: Sequence[str], short: dict[str, str], left: int
) -> Table:
    cells = [
        ["/".join(_shown(part, row[part]) for part in column.split("/")) for column in columns]
        for row in rows
    ]
    short = HEADS | short
    heads = [short.get(c, c.replace("_bytes", " MiB").replace("_", " ")) for c in columns]
    made = table("", heads, cells, left=left)
    made.columns[1].no_wrap = False
    if columns[-1] == "source":
        made.columns[-1].justify = "left"
    return made


def _shown(column: str, value: Any) -> str:
    if column.endswith("_bytes"):
        return units.size("MiB", value).removesuffix(" MiB")
    if column == "source":
        return textwrap.shorten(value, SOURCE, placeholder=" ...")
    if column == "tokens":
        return f"{value:,}"
    return units.count_of(value) if column in ("parameters", "step_flops") else str(value)


def _strategies() -> list[dict[str, Any]]:
    return [
        {"strategy": name, "idea": SUMMARIES.get(name, f"from {place}")}
        for name, place in places().items()
    ]


def _workloads() -> list[dict[str, Any]]:
    rows = []
    for name in names():
        work = find(name)
        axes = " x ".join(f"{axis} {length}" for axis, length in work.axes.items())
        rows.append(
            {
                "workload": name,
                "axes": axes,
                "tokens": work.batch * work.tokens,
                "parameters": parameters(work).total,
                "activation_bytes": work.activation_bytes,
                "hidden": work.hidden,
                "heads": work.heads,
                "depth": work.depth,
                "batch": work.batch,
                "step_flops": step_flops(work),
                "dtype": work.dtype,
                "source": work.source,
            }
        )
    return rows


def _sweeps() -> list[dict[str, Any]]:
    rows = []
    for name in names("sweeps"):
        try:
            sweep = load_sweep(name, named)
        except WorkloadError as error:
            raise Failure(str(error)) from None
        gpus = sorted({cell.ranks for cell in sweep.cells})
        workloads = dict.fromkeys(cell.workload.name for cell in sweep.cells)
        rows.append(
            {
                "sweep": name,
                "workloads": ", ".join(workloads),
                "gpus": ", ".join(map(str, gpus)),
                "cells": len(sweep.cells),
                "launches": sweep.file.launches,
                "source": sweep.file.source,
            }
        )
    return rows


def _runs() -> list[dict[str, Any]]:
    rows = []
    for run in all_runs():
        records = read_rows(run).latest()
        if not records:
            continue
        rows.append(
            {
                "run": run.name,
                "workloads": ", ".join(dict.fromkeys(r.workload for r in records)),
                "ok": sum(record.status == "ok" for record in records),
                "other": sum(record.status != "ok" for record in records),
                "started": records[0].started_utc,
            }
        )
    return rows
