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

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import groupby
from typing import final

from spbench.workload.mask import Mask, Runs, Strip, Tile
from spbench.workload.sharding import Run, Sizes, merged_runs, runs_of

Reach = tuple[int, int]
"""The keys that a query sees before its own position, and behind it."""


@final
@dataclass(frozen=True, kw_only=True)
class Band(Mask):
    """Documents end to end, mostly one, in each of which a query sees the keys from ``before`` to
    ``after`` positions beside its own."""

    documents: Sizes
    before: int
    after: int

    @property
    def is_apart(self) -> bool:
        farthest = max(self.documents) - 1
        return self.before >= farthest and (self.after >= farthest or self.after == 0)

    def tiles(self, rows: Runs, keys: Runs) -> tuple[Tile, ...]:
        return _all_tiles(self, rows, keys)

    def needed(self, rows: Runs) -> Runs:
        seen: list[Run] = []
        for first, n in rows:
            if not n:
                continue
            begin, (last, length) = self._document(first)[0], self._document(first + n - 1)
            low = max(begin, first - self.before)
            high = min(last + length, first + n + self.after)
            if seen:  # what two runs see may overlap
                low = max(low, sum(seen[-1]))
            seen.append((low, high - low))
        return merged_runs(seen)

    def pairs(self, rows: Runs) -> int:
        return sum(
            self._pairs_up_to(first + n - begin, length) - self._pairs_up_to(first - begin, length)
            for run in rows
            for (first, n), (begin, length) in self.inside(run)
        )

    def inside(self, run: Run) -> Iterator[tuple[Run, Run]]:
        """The parts of a run that lie in each document, and these."""
        at = bisect_right(self._starts, run[0]) - 1
        while run[1] and at < len(self.documents) and self._starts[at] < sum(run):
            document = self._starts[at], self.documents[at]
            yield _common(run, document), document
            at += 1

    def _document(self, position: int) -> Run:
        at = bisect_right(self._starts, position) - 1
        return self._starts[at], self.documents[at]

    @cached_property
    def _starts(self) -> list[int]:
        return [first for first, _ in runs_of(self.documents)]

    def _pairs_up_to(self, count: int, length: int) -> int:
        """``pairs`` of the first ``count`` queries of a document so long."""
        before, after = min(self.before, length - 1), min(self.after, length - 1)
        # Query i lacks before - i keys at the start, and at the end i + after - (length - 1).
        early = min(count, before)
        late = max(0, count + after - length)
        missing = early * before - early * (early - 1) // 2 + late * (late + 1) // 2
        return count * (before + after + 1) - missing


@lru_cache(maxsize=1000)  # asked for by each layer of a stack, forward and backward
def _all_tiles(band: Band, rows: Runs, keys: Runs) -> tuple[Tile, ...]:
    """The tiles of each run of queries with each run of keys, where these lie in memory."""
    found: list[Tile] = []
    at_row = 0
    for run in rows:
        for part, document in band.inside(run):
            at_key = 0
            for other in keys:
                near = _common(other, document)
                places = at_row + part[0] - run[0], at_key + near[0] - other[0]
                own = tiles(part, near, (band.before, band.after)) if near[1] else []
                found += [_moved(tile, *places) for tile in own]
                at_key += other[1]
        at_row += run[1]
    return tuple(_together(found))


def _together(tiles: Sequence[Tile]) -> Iterator[Tile]:
    """Tiles of one size that begin at equal distances, one after another, as one: of chunks, and of
    documents that are as long."""
    last: Tile | None = None
    for tile in tiles:
        joint = last and _joint(last, tile)
        if joint is None and last is not None:
            yield last
        last = joint or tile
    if last is not None:
        yield last


def _joint(one: Tile, other: Tile) -> Tile | None:
    """Both as one tile; None: they are not alike, or not apart."""
    joint: list[Strip] = []
    for a, b in ((one.rows, other.rows), (one.keys, other.keys)):
        assert isinstance(a, Strip) and isinstance(b, Strip), "a band has strips"
        step = b.first - (a.first + (a.times - 1) * a.step)
        is_next = step == a.step or a.times == 1
        if a.size != b.size or b.times > 1 or step < a.size or not is_next:
            return None
        joint.append(Strip(a.first, a.size, step, a.times + 1))
    rows, keys = joint
    return Tile(rows, keys, one.sees) if one.sees == other.sees else None


def _common(one: Run, other: Run) -> Run:
    """The positions of both; of no length where there are none."""
    first = max(one[0], other[0])
    return first, max(0, min(sum(one), sum(other)) - first)


def _moved(tile: Tile, rows: int, keys: int) -> Tile:
    assert isinstance(tile.rows, Strip) and isinstance(tile.keys, Strip), "a band has strips"
    return Tile(
        tile.rows._replace(first=tile.rows.first + rows),
        tile.keys._replace(first=tile.keys.first + keys),
        tile.sees,
    )


def tiles(rows: Run, keys: Run, reach: Reach) -> list[Tile]:
    """What queries at positions ``rows`` see of the keys at positions ``keys``.

    Parameters
    ----------
    rows, keys
        Runs of positions; the first of each lies at 0 in memory.
    reach
        The window.

    Returns
    -------
    list of Tile
        Each pair once; none that is hidden.
    """
    before, after = reach
    if sum(rows) + after <= keys[0] or sum(keys) + before <= rows[0]:
        return []  # none of the keys is near enough to any of the queries
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
