"""The header of runs.csv: which column stands where, and which lines are rows below it.

A row is one line whatever its texts hold, so that damage stays within its line. A file of another
version has fewer or more columns; of a file that a spreadsheet has saved in another form, or that
was joined from two, a sentence says what to do with it.
"""

from __future__ import annotations

import csv
import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from spbench.results.record import COLUMNS, REQUIRED

DELIMITERS = {",": "", ";": "semicolons", "\t": "tabs"}
AT_LEAST = 3
"""No row has so many names of columns in its cells."""
CLOCK = re.compile(r"\d\d:\d\d")
"""A row says when it began, a header never: most lines need no closer look."""
BLANK = ',;\t" '


@dataclass(frozen=True, kw_only=True)
class Header:
    """The cells of a header line."""

    cells: tuple[str, ...]
    delimiter: str = ","

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
    def is_ours(self) -> bool:
        """Whether it has so many names of columns that it is not a row."""
        return len(set(COLUMNS).intersection(self.cells)) >= AT_LEAST

    @cached_property
    def why_not(self) -> str:
        """Why no row below this header can be used; empty if it has what a row needs."""
        if self.is_ours and self.delimiter != ",":
            return (
                f"its cells are divided by {DELIMITERS[self.delimiter]}, save the file as CSV "
                "with commas and decimal points"
            )
        return self._doubts([name for name in REQUIRED if name not in self.places])

    @cached_property
    def renamed(self) -> str:
        """Which columns that may be blank seem to stand here under another name."""
        lost = [name for name in COLUMNS if name not in self.places and name not in REQUIRED]
        return self._doubts([name for name in lost if name in self.cells or name in self._alike])

    def _doubts(self, missing: Sequence[str]) -> str:
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
        """The unknown column that looks like a missing one; none looks like two."""
        lost = [name for name in COLUMNS if name not in self.cells]
        alike: dict[str, str] = {}
        for unknown in self.cells:
            if unknown not in COLUMNS:
                for name in difflib.get_close_matches(unknown, lost, n=1):
                    alike.setdefault(name, unknown)
        return alike


@dataclass(frozen=True, kw_only=True)
class Lines:
    """The lines of runs.csv, told apart."""

    header: Header | None = None
    rows: Mapping[int, str] = field(default_factory=dict)
    """Lines with as many cells as the header, by their numbers."""
    left_out: dict[str, list[int]] = field(default_factory=dict)
    """Numbers of the lines that are not rows, by the reason."""
    joined: str = ""
    """What is to be said of the rows below a second header."""

    @property
    def columns(self) -> tuple[str, ...]:
        return self.header.cells if self.header else ()

    @property
    def why_not(self) -> str:
        """Why no row can be written behind these; empty if one can."""
        return (self.header or Header(cells=())).why_not or self.joined


def text_of(data: bytes) -> str:
    """The text of a file, with "\\n" at the ends of its lines."""
    text = data.decode("utf-8-sig", errors="replace").replace("\0", "")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def header_of(line: str) -> Header:
    """A line read as a header, with the delimiter that gives the most columns."""
    read = [
        Header(cells=tuple(map(str.strip, cells_of(line, delimiter))), delimiter=delimiter)
        for delimiter in DELIMITERS
    ]
    return max(read, key=lambda header: len(set(COLUMNS).intersection(header.cells)))


def cells_of(line: str, delimiter: str = ",") -> list[str]:
    """The cells of a line; none if its quotes do not close."""
    if '"' not in line:
        return line.split(delimiter)
    try:
        return next(csv.reader([line], delimiter=delimiter, strict=True), [])
    except csv.Error:
        return []


def without_torn_cell(line: str) -> str:
    """A line that a kill has cut, without its last cell: half a figure reads as another one."""
    return line[: line.rfind(",") + 1]


def with_last_line_ended(text: str) -> str:
    """What a row can be written behind: a last line that was cut short loses its last cell.

    Empty if there is nothing but blanks or what a kill left of a header.
    """
    if not text.strip(BLANK + "\n") or _begins_header(text):
        return ""
    whole, end, torn = text.rpartition("\n")
    return whole + end + (without_torn_cell(torn) if "," in torn else torn) + "\n" * bool(torn)


def _begins_header(text: str) -> bool:
    return ",".join(COLUMNS).startswith(text)


def widened(text: str, missing: Sequence[str]) -> str:
    """A file with columns that it lacks, blank in each of its rows."""
    lines = text.split("\n")
    known = lines_of(text)
    blanks = "," * len(missing)
    for number, line in enumerate(lines, 1):
        if number in known.rows:
            lines[number - 1] += blanks
        elif header_of(line) == known.header:
            lines[number - 1] += "," + ",".join(missing)
    return "\n".join(lines)


def lines_of(text: str) -> Lines:
    """The header, its rows and what is neither."""
    header = None
    rows: dict[int, str] = {}
    left_out: dict[str, list[int]] = {}
    joined = ""
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        is_torn = number == len(lines)
        if not line.strip(BLANK) or (is_torn and number == 1 and _begins_header(line)):
            continue
        if not CLOCK.search(line) and (found := header_of(line)).is_ours:
            if header is None:
                header = found
            elif found != header:
                joined = joined or f"below another header (line {number}), split the file there"
            continue
        row = without_torn_cell(line) if is_torn else line
        reason = joined or _why_no_row(header, row)
        if reason:
            left_out.setdefault(reason, []).append(number)
        else:
            rows[number] = row
    return Lines(header=header, rows=rows, left_out=left_out, joined=joined)


def _why_no_row(header: Header | None, line: str) -> str:
    if header is None:
        return "no header above"
    if header.why_not:
        return header.why_not
    fits = len(cells_of(line)) == len(header.cells)
    return "" if fits else "more or fewer cells than the header"
