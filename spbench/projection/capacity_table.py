"""Prints the largest batch and the longest axis that fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from spbench.projection.capacity import BATCH, Capacity
from spbench.report import tables, units
from spbench.report.fit_width import Grid, fewer
from spbench.text import counted


def as_data(capacities: Sequence[Capacity], budget_bytes: float, kind: str) -> list[dict[str, Any]]:
    """An object for each; ``kind`` is ``exact`` or ``measured``."""
    return [{**asdict(each), "budget_bytes": budget_bytes, "kind": kind} for each in capacities]


def show_capacities(capacities: Sequence[Capacity], budget_bytes: float, how: str) -> None:
    """A line for each, and a sentence where something other than memory is the limit."""
    out, unit = tables.console(), units.size_unit(budget_bytes)
    tables.say(out, f"within {units.size_in(unit, budget_bytes)} {unit} of a rank, {how}")
    after = f"{unit} of the next"
    columns = ("strategy", "ranks", "grows", "largest", unit, after, "tries")
    rows = [_row(each, unit) for each in capacities]
    tables.show_fitting(
        out, fewer(Grid(columns=columns, rows=rows, words=(0, 2)), ("tries", after))
    )
    tables.say(out, *(_limit(each) for each in capacities if _limit(each)))


def _row(each: Capacity, unit: str) -> list[str]:
    largest = units.BLANK if each.largest is None else f"{each.largest:,}"
    peaks = (each.peak_bytes, each.next_bytes)
    sizes = [units.BLANK if peak is None else units.size_in(unit, peak) for peak in peaks]
    return [each.strategy, str(each.ranks), each.grows, largest, *sizes, str(each.tries)]


def _limit(each: Capacity) -> str:
    where = f"{each.strategy} on {counted(each.ranks, 'rank')}, {each.grows}"
    if each.largest is None and each.peak_bytes is not None:
        smallest = "batch 1" if each.grows == BATCH else "the smallest size"
        return f"{where}: {smallest} does not fit"
    return f"{where}: {each.why_not}" if each.why_not else ""
