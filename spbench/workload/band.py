r"""The scores that a window leaves, as few tiles that a kernel takes without a mask of its own.

A query at position i sees the keys i - before to i + after. Queries go in blocks of as many as the
window has keys; what a block sees is two triangles, and the keys between them, if any:

    keys         i - before ...        ... i + after
    queries      . . . \ x x x x x x .   . . .        late: a query sees its own column and later
                 . . . . \ x x x x x x . . . .        whole
                 . . . . . \ x x x x x x \ . .        early: a query sees its own column and earlier

All blocks that have all of their keys at hand are one tile, which a kernel takes as a batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Literal, NamedTuple

from spbench.workload.sharding import Run

Reach = tuple[int, int]
"""The keys that a query sees before its own position, and behind it."""
Sees = Literal["whole", "early", "late"]
"""What a query sees of a tile: all keys; in a square those up to its own column, or from it on."""


class Strip(NamedTuple):
    """Stretches of positions, ``size`` each, that begin every ``step`` positions from ``first``."""

    first: int
    size: int
    step: int = 1
    times: int = 1


class Tile(NamedTuple):
    """Queries and keys in memory, stretch by stretch, and what each query sees of its stretch."""

    rows: Strip
    keys: Strip
    sees: Sees


def seen_pairs(length: int, before: int, after: int) -> int:
    """Pairs of query and key that see each other in a sequence of this length.

    >>> seen_pairs(5, 1, 0), seen_pairs(3, 9, 9)
    (9, 9)
    """
    # d positions apart there are length - d pairs, from 1 to before, and from 1 to after.
    before, after = min(before, length - 1), min(after, length - 1)
    missing = before * (before + 1) // 2 + after * (after + 1) // 2
    return length * (before + after + 1) - missing


def tiles(rows: Run, keys: Run, reach: Reach | None, *, causal: bool) -> list[Tile]:
    """What queries at positions ``rows`` see of the keys at positions ``keys``.

    Parameters
    ----------
    rows, keys
        Runs of positions; the first of each lies at 0 in memory.
    reach
        The window; None: there is none.
    causal
        Without a window: whether a query sees no later key.

    Returns
    -------
    list of Tile
        Each pair once; none that is hidden.
    """
    if reach is None and causal and rows != keys:
        reach = (rows[0] + rows[1], 0)  # as far back as the first position of all
    if reach is None:
        sees: Sees = "early" if causal else "whole"
        return [Tile(Strip(0, rows[1]), Strip(0, keys[1]), sees)]
    before, after = reach
    block = min(before + after + 1, rows[1])
    # Positions are counted from the first key: of queries from 3 and keys from 0 by 3.
    starts = range(rows[0] - keys[0], rows[0] - keys[0] + rows[1], max(1, block))

    def is_inside(start: int) -> bool:
        whole = start - starts[0] + block <= rows[1]
        return whole and start >= before and start + after + block <= keys[1]

    found: list[Tile] = []
    for inside, group in groupby(starts, is_inside):
        members = [*group]
        if inside:
            found += _inside(members, starts[0], block, reach)
            continue
        for start in members:
            count = min(block, starts[0] + rows[1] - start)
            found += _clipped(start, starts[0], count, reach, keys[1])
    return found


def _inside(starts: list[int], origin: int, block: int, reach: Reach) -> Iterator[Tile]:
    """The tiles of blocks that see as many keys each, all of which are there."""
    before, after = reach
    first, count = starts[0], len(starts)

    def strip(at: int, size: int) -> Strip:
        return Strip(at, size, block, count)

    def rows(size: int) -> Strip:
        return strip(first - origin, size)

    if block > 1:
        yield Tile(rows(block - 1), strip(first - before, block - 1), "late")
    if between := before + after + 1 - block:
        yield Tile(rows(block), strip(first - before + block - 1, between), "whole")
    yield Tile(rows(block), strip(first + after, block), "early")


def _clipped(start: int, origin: int, count: int, reach: Reach, keys: int) -> Iterator[Tile]:
    """The tiles of one block of ``count`` queries; of the keys those from 0 to below ``keys`` are
    there."""
    before, after = reach
    row = start - origin
    # The late square: of its columns some are missing at either end.
    left, size = start - before, count - 1
    first, end = max(0, -left), min(size, keys - left)
    if first < end:
        columns = Strip(left + first, end - first)
        if first:
            yield Tile(Strip(row, first), columns, "whole")
        yield Tile(Strip(row + first, end - first), columns, "late")
    first, end = max(0, left + size), min(start + after, keys)
    if first < end:
        yield Tile(Strip(row, count), Strip(first, end - first), "whole")
    right = start + after
    first, end = max(0, -right), min(count, keys - right)
    if first < end:
        columns = Strip(right + first, end - first)
        yield Tile(Strip(row + first, end - first), columns, "early")
        if end < count:
            yield Tile(Strip(row + end, count - end), columns, "whole")
