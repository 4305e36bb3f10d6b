"""A CSV file from other hands as lines and cells: line ends, quotes, bytes that are no text.

A last line without an end is torn, as by a kill: what its last cell holds may be cut short, and
half a figure reads as another one.
"""

from __future__ import annotations

import csv


def lines_of(data: bytes) -> list[str]:
    """Without line ends; behind the last one stands what is torn, or an empty text.

    Of joined files each may have brought its byte order mark.
    """
    text = data.decode("utf-8-sig", errors="replace").replace("\0", "")
    ended = text.replace("\r\n", "\n").replace("\r", "\n")
    return ended.replace("\n\ufeff", "\n").split("\n")


def cells_of(line: str, delimiter: str) -> list[str]:
    """The cells of a line; none if its quotes cannot be read."""
    if '"' not in line:
        return line.split(delimiter)
    try:
        return next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error:
        return []


def without_last_cell(torn: bytes, delimiter: str) -> bytes:
    """A torn line up to its last delimiter, so that its last cell reads as blank.

    As it is, where its quotes cannot be read.
    """
    (line,) = lines_of(torn)
    blanked = [*cells_of(line, delimiter)[:-1], ""]
    end = len(torn)
    while (end := torn.rfind(delimiter.encode(), 0, end)) >= 0:
        (line,) = lines_of(torn[: end + 1])
        if cells_of(line, delimiter) == blanked:
            return torn[: end + 1]
    return torn
