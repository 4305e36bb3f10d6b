"""The dry run: cells of a run, the bytes that each would send, and the work of a rank."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console

from spbench.report import tables, units
from spbench.report.fit_width import Grid, fewer, folded
from spbench.report.progress import in_a_line
from spbench.text import counted, grouped
from spbench.workload.case import Case, Cell
from spbench.workload.documents import in_words
from spbench.workload.predicted import Prediction, RankWork
from spbench.workload.traffic import PHASES

LABEL, NARROWEST = 16, 40
"""Columns of a field's name, and of the narrowest line that fields are folded to."""
COLUMNS = (
    *("strategy", "ranks", "launches", "sharded axes", "fwd MiB", "bwd MiB", "grad MiB"),
    "a launch",
)
SPARE = ("sharded axes", "grad MiB", "bwd MiB", "launches", "a launch", "fwd MiB")
"""Columns left out where not all fit, in this order."""
PARTS = ("parameters", "gradients", "optimizer", "activations", "temporaries")
WORK_COLUMNS = ("strategy", "ranks", "GEMM Tflop", "attention Tflop", "kernels", "peak MiB", *PARTS)
Works = Callable[[], tuple[Mapping[str, RankWork], Sequence[str]]]
"""The work of each case by its key, and sentences on those without."""
Foresees = Callable[[Mapping[str, int]], Sequence[str]]
"""What all will take in sentences, by the counted peaks of a rank of each case."""


def show_plan(
    cells: Sequence[Cell],
    predictions: Mapping[str, Prediction],
    launch_s: Mapping[str, float],
    foreseen: Foresees,
    works: Works,
    *,
    as_json: bool,
) -> None:
    """Prints the resolved workloads and each case with its predicted bytes; then what the busiest
    rank of each computes and holds, which takes a second for each; and what all will take.

    ``predictions``, ``launch_s``: by the keys of cases; none for a cell that cannot run.
    """
    keys = [cell.case.key for cell in cells]
    rows = [
        _plan(cell, predictions.get(key), launch_s.get(key))
        for cell, key in zip(cells, keys, strict=True)
    ]
    if as_json:
        known, _ = works()
        tables.print_json([row | _work(known.get(row["case"])) for row in rows])
        return
    out = tables.console()
    of_workloads: dict[str, list[dict[str, Any]]] = {}
    for cell, row in zip(cells, rows, strict=True):
        of_workloads.setdefault(in_a_line(cell.case.workload), []).append(row)
    if len(of_workloads) == 1:
        workload = cells[0].case.workload
        fields = workload.model_dump(mode="json", by_alias=True)
        width = max(NARROWEST, tables.room(out))
        said = [(name, json.dumps(value)) for name, value in fields.items()]
        packed = [(axis, lengths) for axis in workload.axes if (lengths := workload.packing(axis))]
        said += [("documents", f"{axis}: {in_words(lengths)}") for axis, lengths in packed]
        for name, value in said:
            for line in folded(value, width, LABEL, label=f"{name}:", style=""):
                out.print(line, soft_wrap=True)
    for title, these in of_workloads.items():
        if len(of_workloads) > 1:
            tables.say(out, title)
        _show_cells(out, these)
    known, left_out = works()
    _show_works(out, cells, known, left_out)
    tables.say(out, *foreseen({key: sum(done.peak_bytes.values()) for key, done in known.items()}))


def _show_works(
    out: Console, cells: Sequence[Cell], known: Mapping[str, RankWork], sentences: Sequence[str]
) -> None:
    """A line for each case, below the workload's where there are several."""
    cases = {cell.case.key: cell.case for cell in cells if cell.case.key in known}
    of_workloads = grouped(cases.values(), lambda case: in_a_line(case.workload))
    if known:
        tables.say(out, "a step on the busiest rank, counted; memory in MiB at its peak:")
    for title, these in of_workloads.items():
        if len(of_workloads) > 1:
            tables.say(out, title)
        rows = [_work_cells(case, known[case.key]) for case in these]
        full = Grid(columns=WORK_COLUMNS, rows=rows, words=(0,))
        tables.show_fitting(out, fewer(full, ("kernels", *PARTS[::-1])))
    tables.say(out, *sentences)


def _work_cells(case: Case, done: RankWork) -> list[str]:
    peak = done.peak_bytes
    flops = [f"{done.flops[kind] / 1e12:.3g}" for kind in ("gemm", "attention")]
    sizes = [units.mebibytes(size) for size in (sum(peak.values()), *map(peak.__getitem__, PARTS))]
    return [case.strategy, str(case.ranks), *flops, f"{done.kernels:,}", *sizes]


def _work(done: RankWork | None) -> dict[str, Any]:
    names = ("flops", "kernels", "peak_bytes")
    return {name: getattr(done, name) if done else None for name in names}


def _show_cells(out: Console, rows: Sequence[dict[str, Any]]) -> None:
    """A line for each case, with the number of its launches."""
    launches = Counter(row["case"] for row in rows)
    once = {row["case"]: [*_cells(row, launches[row["case"]])] for row in rows}
    full = Grid(columns=COLUMNS, rows=[*once.values()], words=(0, 3), wraps=(3,))
    tables.show_fitting(out, fewer(full, SPARE))
    tables.say(out, *dict.fromkeys(filter(None, map(_remark, rows))))


def _cells(row: dict[str, Any], launches: int) -> list[str]:
    sent = [units.mebibytes(row["sent_bytes"].get(phase)) for phase in PHASES]
    which = [row["strategy"], str(row["ranks"]), str(launches), row["sharded"]]
    seconds = row["estimated_launch_s"]
    took = units.BLANK if seconds is None else units.roughly(seconds)
    return [*which, *sent, took]


def _remark(row: dict[str, Any]) -> str:
    """Why a cell cannot run, or the strategy's note on its figures."""
    remark = f"cannot run: {row['why_not']}" if row["why_not"] else row["note"]
    return f"{row['strategy']} on {counted(row['ranks'], 'rank')}: {remark}" if remark else ""


def _plan(cell: Cell, prediction: Prediction | None, launch_s: float | None) -> dict[str, Any]:
    case, work = cell.case, cell.case.workload
    shape = ("axes", "batch", "dtype", "mode", "checkpointing", "optimizer", "guidance")
    return {
        **{"case": case.key, "workload": work.name},
        **{name: getattr(work, name) for name in shape},
        "strategy": case.name,
        **{name: getattr(case, name) for name in ("ranks", "launch", "device", "kind")},
        **asdict(prediction or Prediction(sharded="", sent_bytes={}, note="")),
        "why_not": cell.why_not,
        "estimated_launch_s": launch_s,
    }
