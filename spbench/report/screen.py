"""What a run shows while it runs: on stderr, live in a terminal, plain lines elsewhere."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import click
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from spbench.judge.side_by_side import panel_of
from spbench.launch.plan import Cell
from spbench.report import tables, units
from spbench.results.environment import package_version
from spbench.results.record import Record
from spbench.strategies.registry import load
from spbench.workload.case import Case
from spbench.workload.words import counted
from spbench.workload.workload import Workload


class Screen:
    """Says what starts and what has finished."""

    def __init__(self, folder: Path, cases: Sequence[Case], *, resumed: int = 0) -> None:
        self.folder, self.cases, self.done = folder, cases, 0
        self.console = tables.console(sys.stderr)
        self.live = self.console.is_terminal and not self.console.is_dumb_terminal
        self.started_s = time.monotonic()
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.completed}/{task.total}"),
            TimeElapsedColumn(),
            console=self.console,
            transient=True,
            disable=not self.live,
        )
        self.task = self.progress.add_task("starting", total=len(cases))
        self.resumed = resumed
        self.several = len({in_a_line(case.workload) for case in cases}) > 1

    def __enter__(self) -> Self:
        if self.resumed:
            are = counted(self.resumed, "case") + (" is" if self.resumed == 1 else " are")
            left = len(self.cases)
            self._say(f"{are} in {self.folder} already; {left} left to do")
        for sentence in header(self.cases):
            self._say(sentence)
        self.progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.progress.stop()
        if isinstance(error, KeyboardInterrupt):
            self._say(f"stopped; what was finished is kept. Go on with --out {self.folder}")
        elif error is None:
            took = units.seconds(time.monotonic() - self.started_s)
            self._say(f"{counted(self.done, 'case')} in {took}; rows in {self.folder / 'runs.csv'}")
            self._say(f"next: spbench compare {self.folder}, spbench plot {self.folder}")

    def started(self, case: Case) -> None:
        self.progress.update(self.task, description=case.label)

    def finished(self, record: Record) -> None:
        self.done += 1
        self.progress.update(self.task, advance=1)
        if record.status == "ok":
            time_ms = record.step_ms if record.step_ms is not None else record.compute_ms
            sent = [record.sent_bytes_forward, record.sent_bytes_backward]
            total = sum(count or 0 for count in (*sent, record.sent_bytes_gradients))
            what = "step" if record.step_ms is not None else "compute"
            said = f"{what} {units.milliseconds(time_ms)} ms, sent {units.mebibytes(total)} MiB"
            error = max(record.output_error or 0.0, record.gradient_error or 0.0)
            said += f", peak {units.mebibytes(record.peak_allocated_bytes)} MiB"
            said += f", gate {units.error(error)}"
        else:
            said = f"{record.status}: {record.reason}"
        launch = f" launch {record.launch + 1}" if record.launch else ""
        panel = f"{panel_of(record)}, " if self.several else ""
        self._say(f"{panel}{record.strategy} on {record.world_size}{launch}: {said}")

    def _say(self, text: str) -> None:
        if not self.live:
            stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            text = f"{stamp} {text}"
        self.progress.console.print(text, soft_wrap=True)


def header(cases: Sequence[Case]) -> list[str]:
    """What is about to run, on what."""
    said = list(dict.fromkeys(in_a_line(case.workload) for case in cases))
    if cases:
        *others, last = dict.fromkeys(case.ranks for case in cases)
        ranks = ", ".join([*map(str, others), counted(last, "rank")])
        backend = {"cuda": "nccl", "cpu": "gloo"}[cases[0].device]
        torch = f"torch {package_version('torch')}"
        said.append(
            f"{counted(len(cases), 'case')} on {ranks}; {cases[0].device}, {backend}, {torch}"
        )
    return said


def in_a_line(work: Workload) -> str:
    """What of a workload tells it from its like in a sweep."""
    axes = " x ".join(f"{name} {length}" for name, length in work.axes.items())
    size = f"hidden {work.hidden}, {work.heads} heads, depth {work.depth}"
    how = f"{work.dtype}, {work.mode}"
    again = ", checkpointed" if work.checkpointing != "none" else ""
    return f"{work.name}: {axes}, {size}, batch {work.batch}, {how}{again}"


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
