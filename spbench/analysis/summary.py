"""One figure of several launches: their median, and how far it may be off."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from spbench.analysis.intervals import around
from spbench.results.record import Record


@dataclass(frozen=True, kw_only=True)
class Figure:
    """Median over the launches of a case, and how far it may be off."""

    median: float
    low: float
    high: float
    is_interval: bool
    """Of 95 %; with fewer than three launches low and high are the smallest and largest."""


def figure(records: Sequence[Record], column: str) -> Figure | None:
    """Of the launches that count; None where none has the column."""
    values = _values(records, column)
    if not values:
        return None
    interval = around(values) if min(values) > 0 else None
    low, high = interval or (min(values), max(values))
    return Figure(
        median=statistics.median(values), low=low, high=high, is_interval=interval is not None
    )


def _values(records: Sequence[Record], column: str) -> list[float]:
    return [value for record in records if (value := getattr(record, column)) is not None]


def median(records: Sequence[Record], column: str) -> float | None:
    """None where none has the column."""
    values = _values(records, column)
    return statistics.median(values) if values else None
