"""The rows of a results directory as records."""

from __future__ import annotations

from pathlib import Path

import pandas

from spbench.results.record import Record
from spbench.results.runs_csv import latest, read_runs, records_of


def stored(path: Path) -> list[Record]:
    return records_of(read_runs(path))


def stored_latest(path: Path) -> list[Record]:
    """The latest row of each launch."""
    return records_of(latest(read_runs(path)))


def rows_left_out(frame: pandas.DataFrame) -> int:
    """Number of rows that were left out."""
    return sum(map(len, frame.attrs["left_out"].values()))
