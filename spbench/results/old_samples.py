"""samples.csv.gz of older versions: all launches in one file, each a gzip member of its own.

A run that was killed while it wrote left a torn member with others behind it. The part before the
tear is read, unless the launch is whole elsewhere; a member whose checksum is wrong is left out, as
any of its figures may be wrong.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pandas

NAME = "samples.csv.gz"
COLUMNS = ("case", "launch", "pass", "rank", "iteration", "ms")
MEMBER = re.compile(rb"\x1f\x8b\x08(?=[\x00-\x1f].{4}[\x00\x02\x04][\x00-\x0d\xff])", re.DOTALL)
"""The beginning of a gzip member: method, flags, any time, level, system (RFC 1952). A torn member
may end like that, directly before the next."""


def read_cells(folder: Path, cases: Collection[str] | None) -> tuple[pandas.DataFrame, int]:
    """The lines of ``cases``, or of all cases, and the number of torn places.

    A line holds one time; a launch that was measured again has lines of each attempt. ``whole``
    marks the lines of whole members.
    """
    try:
        members = list(_members((folder / NAME).read_bytes()))
    except OSError:
        members = []
    whole = cells_of("\n".join(text for text, is_whole in members if is_whole), COLUMNS)
    torn = [text[: text.rfind("\n") + 1] for text, is_whole in members if not is_whole]
    cells = pandas.concat(
        [whole.assign(whole=True), cells_of("".join(torn), COLUMNS).assign(whole=False)],
        ignore_index=True,
    )
    return cells if cases is None else cells[cells["case"].isin(cases)], len(torn)


def cells_of(text: str, columns: Sequence[str]) -> pandas.DataFrame:
    """The lines of a CSV file without its headers; nothing in it raises."""
    header = ",".join(columns)  # ahead of lines that may all be too short
    return pandas.read_csv(
        io.StringIO(f"{header}\n{text.replace(header, '')}"),
        names=list(columns),
        header=0,
        usecols=range(len(columns)),
        dtype={"case": str, "pass": str},
        na_values={"step_ms": [""], "silent_ms": [""]},
        keep_default_na=False,
        index_col=False,
        quoting=csv.QUOTE_NONE,
        on_bad_lines="skip",
        low_memory=False,
    )


def _members(data: bytes) -> Iterator[tuple[str, bool]]:
    """The text of each gzip member, or its beginning if it is torn, and whether it is whole."""
    try:
        text = gzip.GzipFile(fileobj=io.BytesIO(data)).read()
    except (OSError, EOFError, zlib.error):
        yield from _members_of_damaged(data)
    else:
        yield text.decode("utf-8", errors="replace"), True


def _members_of_damaged(data: bytes) -> Iterator[tuple[str, bool]]:
    starts = [match.start() for match in MEMBER.finditer(data)]
    if not starts or starts[0] > 0:
        yield "", False
    bounds = [*starts, len(data)]
    i = 0
    while i < len(starts):
        text, ends, rest = _member(data, bounds[i:])
        yield text.decode("utf-8", errors="replace"), ends > 0
        if rest.strip(b"\0"):
            yield "", False  # noise behind a whole member
        i += max(ends, 1)


def _member(data: bytes, bounds: Sequence[int]) -> tuple[bytes, int, bytes]:
    """The member at the first of ``bounds``: its text, the bound of its end, the bytes behind it.

    A member may hold what looks like another beginning. Bound 0: it is torn, and its text ends
    before the next beginning, as what follows would be read as its own.
    """
    inflate = zlib.decompressobj(wbits=31)
    text = beginning = b""
    for ends, (start, end) in enumerate(pairwise(bounds), 1):
        try:
            text += inflate.decompress(data[start:end])
        except zlib.error:
            break
        if inflate.eof:
            return text, ends, inflate.unused_data
        if ends == 1:
            beginning = text
    return beginning, 0, b""
