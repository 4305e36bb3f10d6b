"""The lines of runs.csv: its header, the rows below it, and why another line is neither.

A row is one line whatever its texts hold, so that damage stays within its line.
"""

import csv
import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spbench.errors import or_none
from spbench.results.record import COLUMNS, REQUIRED

DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs"}
AT_LEAST = 3
"""Names of columns in a header; no row has so many in its cells."""
CLOCK = re.compile(r"\d\d:\d\d")
"""A row says when it began, a header never: most lines need no closer look."""
BLANK = ',;\t" '
NO_HEADER = f"no header with the columns that a row needs ({', '.join(REQUIRED[:4])}, ...)"

Header = tuple[tuple[str, ...], str]
"""Cells and their delimiter."""


@dataclass(frozen=True, kw_only=True)
class Lines:
    """The lines of runs.csv by their numbers, from 1."""

    columns: tuple[str, ...]
    """The cells of the header."""
    headers: Sequence[int]
    """The lines that hold the header: more than one where files were joined."""
    rows: Mapping[int, Sequence[str]]
    """Cells of the lines with as many cells as the header."""
    left_out: Mapping[str, list[int]]
    """Lines that are not rows, by the reason."""
    why_not: str
    """Why no row can be written behind the last line; blank if one can."""


def lines_of(text: str) -> Lines:
    """Headers, rows and other lines of a text; a last line without an end loses its last cell."""
    header: Header = (), ","
    headers, why_not, joined = list[int](), NO_HEADER, ""
    rows: dict[int, tuple[str, ...]] = {}
    left_out: dict[str, list[int]] = {}
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        is_torn = number == len(lines)
        if not line.strip(BLANK) or (is_torn and number == 1 and _begins_header(line)):
            continue
        this = None if CLOCK.search(line) else _header_of(line)
        if this is not None and not headers:
            header, why_not = this, _why_no_row_fits(*this)
        if this is not None and this != header:
            joined = joined or f"below another header (line {number}), split the file there"
        elif this is not None:
            headers.append(number)
        else:
            cells = _cells_of(_without_last_cell(line) if is_torn else line)
            reason = joined or (why_not if headers else "no header above")
            if not reason and len(cells) != len(header[0]):
                reason = "more or fewer cells than the header"
            if reason:
                left_out.setdefault(reason, []).append(number)
            else:
                rows[number] = tuple(cells)
    columns, why_not = header[0], why_not or joined
    return Lines(columns=columns, headers=headers, rows=rows, left_out=left_out, why_not=why_not)


def _header_of(line: str) -> Header | None:
    """The cells of a header and their delimiter; None if the line has too few names of columns."""
    for delimiter in DELIMITERS:
        cells = tuple(map(str.strip, _cells_of(line, delimiter)))
        if len(set(COLUMNS).intersection(cells)) >= AT_LEAST:
            return cells, delimiter
    return None


def _why_no_row_fits(columns: Sequence[str], delimiter: str) -> str:
    """Why no row below this header can be used; blank if it has what a row needs."""
    if delimiter != ",":
        form = "save the file as CSV with commas and decimal points"
        return f"its cells are divided by {DELIMITERS[delimiter]}, {form}"
    faults = faults_of(columns)
    missing = [name for name in REQUIRED if columns.count(name) != 1]
    if len(missing) == len(REQUIRED):
        return NO_HEADER
    return ", ".join(faults.get(name, f"no column {name!r}") for name in missing)


def faults_of(columns: Sequence[str]) -> dict[str, str]:
    """The columns that stand there twice, or seem to under another name; none has two."""
    lost = [name for name in COLUMNS if name not in columns]
    twice = [name for name in COLUMNS if columns.count(name) > 1]
    faults = {name: f"column {name!r} stands there twice" for name in twice}
    for unknown in columns:
        if unknown not in COLUMNS:
            for name in difflib.get_close_matches(unknown, lost, n=1):
                faults.setdefault(name, f"no column {name!r}; {unknown!r} looks like it")
    return {name: faults[name] for name in COLUMNS if name in faults}


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


def damage_of(data: bytes) -> str:
    """What of a file would be lost if it were written anew, in words; blank: nothing."""
    found = []
    if b"\0" in data:
        found.append("it holds null bytes")
    if or_none(lambda: data.decode("utf-8-sig")) is None:
        found.append("it holds bytes that are not UTF-8")
    if data and not text_of(data).endswith("\n"):
        found.append("its last line was cut short")
    return ", and ".join(found)


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
    if known.why_not:
        raise ValueError(known.why_not)
    missing = tuple(name for name in COLUMNS if name not in known.columns)
    lines = text.split("\n")
    for number in known.rows:
        lines[number - 1] += "," * len(missing)
    for number in known.headers:
        lines[number - 1] = ",".join([lines[number - 1], *missing])
    return "\n".join(lines), known.columns + missing
