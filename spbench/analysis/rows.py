"""Rows of runs.csv as figures are made of them: a view on a DataFrame, of which nothing is copied.

``read_runs`` gives a DataFrame. Medians and means of a case are taken over a few values each, where
plain lists are much faster than a DataFrame of five rows. So each column is made a list once for
all cases, when it is first asked for: most columns never are.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas


class Columns(dict[str, list[Any]]):
    """Columns of a frame by their names, as lists with None for what was not measured."""

    def __init__(self, frame: pandas.DataFrame) -> None:
        super().__init__()
        # What a frame says beside its cells (``attrs``) would be copied with each column.
        self._frame = pandas.DataFrame(frame)

    def __missing__(self, name: str) -> list[Any]:
        values: pandas.Series[Any] = self._frame[name].astype(object)
        self[name] = values.where(values.notna(), None).tolist()
        return self[name]


@dataclass(frozen=True, slots=True)
class LaunchRow:
    """One row: ``row["step_ms"]`` is its value in that column, None where it was not measured."""

    columns: Columns
    number: int

    def __getitem__(self, column: str) -> Any:
        return self.columns[column][self.number]

    @property
    def compared_ms(self) -> float | None:
        """Time that launches are compared by: a step's, or one GPU's share of computation."""
        return self["compute_ms"] if self["kind"] == "one_gpu_share" else self["step_ms"]


@dataclass(frozen=True, slots=True)
class LaunchRows:
    """Some rows of a frame: ``rows["step_ms"]`` are their values in that column, in order."""

    columns: Columns
    numbers: Sequence[int]
    """Places of the rows in the frame, from 0."""

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, column: str) -> list[Any]:
        values = self.columns[column]
        return [values[number] for number in self.numbers]

    def __iter__(self) -> Iterator[LaunchRow]:
        return (LaunchRow(self.columns, number) for number in self.numbers)

    def measured(self, column: str) -> list[float]:
        """The values of a column that were measured: above 0."""
        return [value for value in self[column] if value]

    def row(self, place: int) -> LaunchRow:
        """One of these rows; -1 is the last of them."""
        return LaunchRow(self.columns, self.numbers[place])

    def only(self, is_kept: Iterable[bool]) -> "LaunchRows":
        """The rows for which ``is_kept``, a value for each of these, is true."""
        kept = [number for number, keep in zip(self.numbers, is_kept, strict=True) if keep]
        return LaunchRows(self.columns, kept)

    def having(self, column: str, *values: Any) -> "LaunchRows":
        """The rows with one of these values in the column."""
        return self.only(value in values for value in self[column])


def rows_of(frame: pandas.DataFrame) -> LaunchRows:
    """All rows of a frame."""
    return LaunchRows(Columns(frame), range(len(frame)))
