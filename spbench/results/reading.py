"""Reading a results directory: sound rows are used, the rest is counted and said in words.

Nothing raises but ResultsError, for a file that cannot be read at all. A row is one line, so
damage stays within its line; a header in the middle holds for the rows below it. Of a row whose
line has no end, as a kill leaves it, the last cell is not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, get_args

from spbench.results.csv_cells import Convert, converters
from spbench.results.csv_header import REQUIRED, Header, as_header, is_header
from spbench.results.csv_lines import cells_of, lines_of
from spbench.results.read_rows import Rows, notes_on
from spbench.results.record import Record
from spbench.results.sample import Status

STATUSES = frozenset(get_args(Status))
NO_TEXT = "\ufffd"
"""Stands for bytes that are no text: what names a row must have none, figures never do."""
BLANK = ',;\t" '


class ResultsError(Exception):
    """A results directory that cannot be used, and why."""


def read_rows(path: Path) -> Rows:
    """The records of a results directory, or of one CSV file. Raises ResultsError."""
    file = path / "runs.csv" if path.is_dir() else path
    try:
        lines = lines_of(file.read_bytes())
    except OSError as error:
        raise ResultsError(f"cannot read {file}: {error.strerror}") from None
    records: list[Record] = []
    left_out: dict[str, list[int]] = {}
    readers: dict[int, _Reader] = {}
    reader: _Reader | None = None
    known = cache(converters)
    for number, line in enumerate(lines, 1):
        if not line.strip(BLANK):
            continue
        is_torn = number == len(lines)
        found = reader.record(line, is_torn=is_torn) if reader else "no header above"
        if isinstance(found, Record):
            records.append(found)
        elif is_header(header := as_header(line)):
            reader = readers[number] = _Reader(header, known(header.delimiter))
        else:
            left_out.setdefault(found, []).append(number)
    used = {number: one.header for number, one in readers.items() if one.has_rows}
    once = list(dict.fromkeys(records))
    repeated = len(records) - len(once)
    return Rows(records=once, left_out=left_out, repeated=repeated, notes=notes_on(used))


class _Reader:
    """Makes records of the lines below one header."""

    def __init__(self, header: Header, convert: Mapping[str, Convert]) -> None:
        self.header = header
        self.has_rows = False
        self.columns = [(i, name, convert[name]) for name, i in header.places.items()]

    def record(self, line: str, *, is_torn: bool) -> Record | str:
        """The record, or why the row is none. Of a torn one the last cell is left blank."""
        cells = cells_of(line, self.header.delimiter)
        if len(cells) != len(self.header.cells):
            return "more or fewer cells than the header"
        if self.header.why_not:
            return self.header.why_not
        if is_torn:
            cells[-1] = ""
        known: dict[str, Any] = {}
        name = ""
        try:
            for i, name, convert in self.columns:
                if (value := convert(cells[i])) is not None:
                    known[name] = value
        except ValueError:
            return f"{name} out of sense"
        blank = next((name for name in REQUIRED if known.get(name) is None), None)
        if blank is not None:
            return f"{blank} blank"
        if NO_TEXT in line:
            for name in REQUIRED:
                if NO_TEXT in str(known[name]):
                    return f"{name} out of sense"
        if known["status"] not in STATUSES:
            return f"status {known['status'][:20]!r} is not known to this version"
        self.has_rows = True
        known.setdefault("schema_version", 1)  # what does not say is not of the latest
        return Record(**known)
