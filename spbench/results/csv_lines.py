"""The lines of runs.csv: its header, the rows below it, and why another line is neither.

A row is one line whatever its texts hold, so that damage stays within its line.
"""

from __future__ import annotations

import csv
import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from spbench.results.record import COLUMNS, REQUIRED

DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs"}
AT_LEAST = 3
"""Names of columns in a header; no row has so many in its cells."""
CLOCK = re.compile(r"\d\d:\d\d")
"""A row says when it began, a header never: most lines need no closer look."""
BLANK = ',;\t" '


@dataclass(frozen=True, kw_only=True)
class Header:
    """The cells of a header line."""

    cells: tuple[str, ...] = ()
    delimiter: str = ","

    @cached_property
    def places(self) -> dict[str, int]:
        """Places of the columns that this version knows, but for names that stand there twice."""
        known = set(COLUMNS).intersection(self.cells)
        return {name: i for i, name in enumerate(self.cells) if name in known and self._once(name)}

    @cached_property
    def why_not(self) -> str:
        """Why no row below this header can be used; empty if it has what a row needs."""
        if self.delimiter != ",":
            return (
                f"its cells are divided by {DELIMITERS[self.delimiter]}, save the file as CSV "
                "with commas and decimal points"
            )
        missing = [name for name in REQUIRED if name not in self.places]
        if len(missing) == len(REQUIRED):
            return f"no header with the columns that a row needs ({', '.join(missing[:4])}, ...)"
        return self._problems(missing)

    @cached_property
    def renamed(self) -> str:
        """The columns that may be blank and seem to stand here under another name."""
        lost = [name for name in COLUMNS if name not in self.places and name not in REQUIRED]
        return self._problems(name for name in lost if name in self.cells or name in self._alike)

    def _problems(self, missing: Iterable[str]) -> str:
        return ", ".join(map(self._problem, missing))

    def _problem(self, name: str) -> str:
        if name in self.cells:
            return f"column {name!r} stands there twice"
        alike = self._alike.get(name)
        return f"no column {name!r}" + (f"; {alike!r} looks like it" if alike else "")

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

    def _once(self, name: str) -> bool:
        return self.cells.count(name) == 1


@dataclass(frozen=True, kw_only=True)
class Lines:
    """The lines of runs.csv by their numbers, from 1."""

    header: Header = field(default_factory=Header)
    headers: Sequence[int] = ()
    """The lines that hold the header: more than one where files were joined."""
    rows: Mapping[int, str] = field(default_factory=dict)
    """Lines with as many cells as the header."""
    left_out: Mapping[str, list[int]] = field(default_factory=dict)
    """Lines that are not rows, by the reason."""
    joined: str = ""
    """Why rows below another header are left out; empty without one."""


def lines_of(text: str) -> Lines:
    """Headers, rows and other lines of a text; a last line without an end loses its last cell."""
    header, headers, joined = Header(), list[int](), ""
    rows: dict[int, str] = {}
    left_out: dict[str, list[int]] = {}
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        is_torn = number == len(lines)
        if not line.strip(BLANK) or (is_torn and number == 1 and _begins_header(line)):
            continue
        this = None if CLOCK.search(line) else _header_of(line)
        if this is not None and this != (header if headers else this):
            joined = joined or f"below another header (line {number}), split the file there"
        elif this is not None:
            header = this
            headers.append(number)
        else:
            row = _without_last_cell(line) if is_torn else line
            reason = joined or _why_not_a_row(header if headers else None, row)
            if reason:
                left_out.setdefault(reason, []).append(number)
            else:
                rows[number] = row
    return Lines(header=header, headers=headers, rows=rows, left_out=left_out, joined=joined)


def _why_not_a_row(header: Header | None, line: str) -> str:
    if header is None:
        return "no header above"
    fits = len(_cells_of(line)) == len(header.cells)
    return header.why_not or ("" if fits else "more or fewer cells than the header")


def _header_of(line: str) -> Header | None:
    """The line as a header; None if it holds too few names of columns."""
    for delimiter in DELIMITERS:
        cells = tuple(map(str.strip, _cells_of(line, delimiter)))
        if len(set(COLUMNS).intersection(cells)) >= AT_LEAST:
            return Header(cells=cells, delimiter=delimiter)
    return None


def _cells_of(line: str, delimiter: str = ",") -> list[str]:
    """The cells of a line; none if its quotes do not close."""
    if '"' not in line:
        return line.split(delimiter)
    try:
        return next(csv.reader([line], delimiter=delimiter, strict=True), [])
    except csv.Error:
        return []


def _without_last_cell(line: str) -> str:
    """A line that a kill has cut: half a figure reads as another figure, so it goes."""
    return line[: line.rfind(",") + 1]


def _begins_header(text: str) -> bool:
    return ",".join(COLUMNS).startswith(text)


def text_of(data: bytes) -> str:
    """The text of a file, with "\\n" at the ends of its lines."""
    text = data.decode("utf-8-sig", errors="replace").replace("\0", "")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def ready_for_rows(text: str) -> tuple[str, tuple[str, ...]]:
    """The text that rows can be written behind, and their columns. Raises ValueError with why not.

    A last line that was cut short is ended without its last cell; a file of an older version
    gets the columns that it lacks. Empty if nothing but the beginning of a header is there.
    """
    if not text.strip(BLANK + "\n") or _begins_header(text):
        return "", COLUMNS
    whole, end, torn = text.rpartition("\n")
    if torn:
        text = whole + end + (_without_last_cell(torn) or torn) + "\n"
    known = lines_of(text)
    if why_not := known.header.why_not or known.joined:
        raise ValueError(why_not)
    missing = [name for name in COLUMNS if name not in known.header.cells]
    lines = text.split("\n")
    for number in known.rows:
        lines[number - 1] += "," * len(missing)
    for number in known.headers:
        lines[number - 1] += "".join(f",{name}" for name in missing)
    return "\n".join(lines), (*known.header.cells, *missing)
