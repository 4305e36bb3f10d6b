"""The header of runs.csv: which column stands where, and whether rows below it can be used.

A file may come back from a spreadsheet with other delimiters, from another version with fewer
or more columns, or joined from two files, with a header in its middle.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cached_property

from spbench.results.csv_lines import cells_of
from spbench.results.record import COLUMNS, Record

REQUIRED = tuple(one.name for one in fields(Record) if one.default is MISSING)
"""A row without one of these is not known to be of any case."""
DELIMITERS = ",;\t"
AT_LEAST = 3
"""So many names of columns no row has in its cells."""
CLOCK = re.compile(r"\d\d:\d\d")
"""A row says when it began, a header never: most lines need no closer look."""


@dataclass(frozen=True, kw_only=True)
class Header:
    """The cells of one header line."""

    cells: tuple[str, ...]
    delimiter: str

    @cached_property
    def places(self) -> dict[str, int]:
        """Where the columns stand that this version knows; of two of one name neither is sure."""
        known = set(COLUMNS)
        return {
            name: i
            for i, name in enumerate(self.cells)
            if name in known and self.cells.count(name) == 1
        }

    @cached_property
    def why_not(self) -> str:
        """Why no row below this header can be used; empty if it has what a row needs."""
        return self._said([name for name in REQUIRED if name not in self.places])

    @cached_property
    def renamed(self) -> str:
        """Which columns that may be blank seem to stand here under another name."""
        lost = [name for name in COLUMNS if name not in self.places and name not in REQUIRED]
        return self._said([name for name in lost if name in self.cells or name in self._alike])

    def _said(self, missing: Sequence[str]) -> str:
        if len(missing) == len(REQUIRED):
            return f"no header with the columns that a row needs ({', '.join(missing[:4])}, ...)"
        return ", ".join(
            f"column {name!r} stands there twice"
            if name in self.cells
            else f"no column {name!r}"
            + (f"; {self._alike[name]!r} looks like it" if name in self._alike else "")
            for name in missing
        )

    @cached_property
    def _alike(self) -> dict[str, str]:
        """By missing column the stranger that looks like it; no stranger looks like two."""
        lost = [name for name in COLUMNS if name not in self.cells]
        found: dict[str, str] = {}
        for stranger in self.cells:
            if stranger not in COLUMNS:
                for name in difflib.get_close_matches(stranger, lost, n=1):
                    found.setdefault(name, stranger)
        return found


def as_header(line: str) -> Header:
    """The line read as a header, with the delimiter that gives the most columns."""
    read = [
        Header(cells=tuple(map(str.strip, cells_of(line, delimiter))), delimiter=delimiter)
        for delimiter in DELIMITERS
    ]
    return max(read, key=lambda header: len(set(COLUMNS).intersection(header.cells)))


def is_header(header: Header) -> bool:
    """Whether it has so many names of columns that it is no row."""
    return len(set(COLUMNS).intersection(header.cells)) >= AT_LEAST


def last_header(lines: Sequence[str]) -> Header | None:
    """The one that a row at the end must fit; None if there is nothing yet."""
    for line in reversed(lines):
        if not CLOCK.search(line) and is_header(header := as_header(line)):
            return header
    first = next((line for line in lines if line.strip()), None)
    return None if first is None else as_header(first)
