"""The largest batch and the longest axis that fit: as a table, and as lines of capacity.csv."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from spbench.projection.capacity import Capacity
from spbench.report import tables, units
from spbench.report.fit_width import Grid, fewer
from spbench.results.capacities import BATCH, COLUMNS
from spbench.results.machine import git_state, package_version
from spbench.results.record import axes_text, columns_of_case
from spbench.text import counted
from spbench.workload.case import Case
from spbench.workload.workload import Workload

NO_OPTIMIZER = (
    "warning: no optimizer is counted, and training has one: AdamW keeps two more tensors of each "
    "weight's size; count them with --set optimizer=adamw"
)


def rows_of(
    capacities: Sequence[Capacity], workload: Workload, budget_bytes: float, tried_on: str | None
) -> list[dict[str, Any]]:
    """A line for each; ``tried_on``: the device of ranks that tried, None for dry runs."""
    case = Case(workload=workload, strategy=capacities[0].strategy, ranks=1, device="cpu")
    known = {
        **columns_of_case(case),
        "budget_bytes": round(budget_bytes),
        "kind": "dry_run" if tried_on is None else "measured",
        "gpu": tried_on or "",
        "torch": package_version("torch"),
        "git_commit": git_state().get("commit", ""),
        "started_utc": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
    }
    rows = [{**known, **asdict(each)} for each in capacities]
    for row in rows:
        if row["grows"] == BATCH:
            row["batch"] = None
        else:
            fixed = {axis: n for axis, n in workload.axes.items() if axis != row["grows"]}
            row["axes"] = axes_text(fixed)
    return [{name: row[name] for name in COLUMNS} for row in rows]


def show_capacities(
    capacities: Sequence[Capacity], work: Workload, budget_bytes: float, how: str
) -> None:
    """What is held, a line for each, and a sentence where something other than memory limits it."""
    out, unit = tables.console(), units.size_unit(budget_bytes)
    tables.say(out, f"{_held(work)},")
    tables.say(out, f"within {units.size_in(unit, budget_bytes)} {unit} of a rank, {how}")
    after = f"{unit} of the next"
    columns = ("strategy", "ranks", "grows", "largest", unit, after, "tries")
    rows = [_row(each, unit) for each in capacities]
    tables.show_fitting(
        out, fewer(Grid(columns=columns, rows=rows, words=(0, 2)), ("tries", after))
    )
    tables.say(out, *filter(None, map(_limit, capacities)))
    if work.mode == "train" and work.optimizer == "none":
        tables.say(out, NO_OPTIMIZER)


def _held(work: Workload) -> str:
    """What counts towards memory, besides the size that grows."""
    again = "no" if work.checkpointing == "none" else work.checkpointing
    how = f"a step of {work.name}: {work.mode}, {again} checkpointing, {work.dtype}"
    if work.mode == "forward":
        return how
    return f"{how}, {'no optimizer' if work.optimizer == 'none' else work.optimizer}"


def _row(each: Capacity, unit: str) -> list[str]:
    largest = units.BLANK if each.largest is None else f"{each.largest:,}"
    peaks = (each.peak_bytes, each.next_bytes)
    sizes = [units.BLANK if peak is None else units.size_in(unit, peak) for peak in peaks]
    return [each.strategy, str(each.ranks), each.grows, largest, *sizes, str(each.tries)]


def _limit(each: Capacity) -> str:
    where = f"{each.strategy} on {counted(each.ranks, 'rank')}, {each.grows}"
    if each.largest is None and not each.why_not:
        return f"{where}: {'batch 1' if each.grows == BATCH else 'the smallest size'} does not fit"
    return f"{where}: {each.why_not}" if each.why_not else ""
