"""How a runs.csv ends: what a new row must be written with, so that it reads as it was meant.

The last line may be the torn one of a killed run: if it has all cells, the last of them goes, as
it may be cut short. The header that is there may be an older
version's, with fewer columns, or torn itself: then a full one is written below it.
"""

from __future__ import annotations

from dataclasses import dataclass

from spbench.results.csv_header import Header, as_header, is_header, last_header
from spbench.results.csv_lines import cells_of, lines_of, without_last_cell
from spbench.results.record import COLUMNS


@dataclass(frozen=True, kw_only=True)
class Ending:
    """Where the next row goes."""

    size_bytes: int = 0
    """How much of the file stays."""
    columns: tuple[str, ...] = COLUMNS
    delimiter: str = ","
    ends_line: bool = False
    """Whether a line end must come first."""
    has_header: bool = False
    """Whether the columns are those of the header that is there."""
    why_not: str = ""
    """Why nothing can be written here: the file is not ours."""


def ending_of(data: bytes) -> Ending:
    """Of all bytes that runs.csv has."""
    lines = lines_of(data)
    header = last_header(lines)
    if header is None:
        return Ending(size_bytes=len(data))
    header_is_torn = bool(lines[-1].strip()) and as_header(lines[-1]) == header
    if header.why_not and not (header_is_torn and _begins_ours(header)):
        return Ending(why_not=header.why_not)
    fits = not header_is_torn and all(name in header.places for name in COLUMNS)
    return Ending(
        size_bytes=len(data) if header_is_torn else _size_bytes(data, header),
        columns=header.cells if fits else COLUMNS,
        delimiter=header.delimiter,
        ends_line=not data.endswith(b"\n"),
        has_header=fits,
    )


def _size_bytes(data: bytes, header: Header) -> int:
    """Without the last cell of a torn row."""
    torn = data[max(data.rfind(b"\n"), data.rfind(b"\r")) + 1 :]
    (line,) = lines_of(torn)
    if len(cells_of(line, header.delimiter)) < len(header.cells):
        return len(data)
    return len(data) - len(torn) + len(without_last_cell(torn, header.delimiter))


def _begins_ours(header: Header) -> bool:
    """Whether what is left of a torn header can have been one of ours."""
    *whole, torn = header.cells
    return is_header(header) or (
        all(name in COLUMNS for name in whole) and any(name.startswith(torn) for name in COLUMNS)
    )
