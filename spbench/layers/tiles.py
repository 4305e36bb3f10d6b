"""Which parts of a score matrix a ring computes under a causal mask, and which it skips.

A rank's queries attend to each rank's keys in turn. Under a mask, of the chunks that the two
hold, a pair is computed whole, computed and masked (on the diagonal), or left out. With
zigzag shards that is the same work on every rank: two chunk pairs of four for each of the
others' keys, three for its own.

                 keys of an earlier rank    its own    keys of a later rank
    early chunk      x .                     \\ .            . .
    late chunk       x .                     x \\            x x

Rows are this rank's folded queries, columns all keys in rank order.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

import torch
from torch import Tensor

from spbench.workload.shards import Shard


@dataclass(frozen=True, kw_only=True)
class Tile:
    """Scores to compute: local rows, columns in rank order, and whether some are masked."""

    rows: tuple[int, int]
    columns: tuple[int, int]
    masked: bool


@dataclass(frozen=True)
class _Stretch:
    """Folded positions that lie end to end in a rank's memory."""

    at: int
    length: int
    first: int | None
    """The first position, if the others follow it one by one."""


@dataclass(frozen=True, kw_only=True)
class Band:
    """The rows of scores of one rank in a ring along ``shard``."""

    shard: Shard
    rank: int
    dims: tuple[int, ...]
    lengths: tuple[int, ...]
    """Whole lengths of the attended ``dims``."""
    causal: bool

    @property
    def _others(self) -> int:
        return prod(self.lengths) // self.shard.length

    def columns_of(self, owner: int) -> tuple[int, int]:
        """Where the keys of ``owner`` are, as first column and number."""
        return self.shard.offset(owner) * self._others, self.shard.sizes[owner] * self._others

    def tiles(self, owner: int) -> list[Tile]:
        """What to compute of this rank's queries with the keys of ``owner``."""
        start, count = self.columns_of(owner)
        if not self.causal:
            rows = self.shard.sizes[self.rank] * self._others
            return [Tile(rows=(0, rows), columns=(start, count), masked=False)]
        found: list[Tile] = []
        for q in self._stretches(self.rank):
            for k in self._stretches(owner):
                masked = True
                if q.first is not None and k.first is not None:
                    if k.first > q.first + q.length - 1:
                        continue
                    masked = k.first + k.length - 1 > q.first
                columns = (start + k.at, k.length)
                found.append(Tile(rows=(q.at, q.length), columns=columns, masked=masked))
        return _merged(found)

    @cached_property
    def all_tiles(self) -> list[Tile]:
        """Those of all owners."""
        every = [tile for owner in range(len(self.shard.sizes)) for tile in self.tiles(owner)]
        return _merged(every)

    def hidden(self, tile: Tile, device: torch.device) -> Tensor:
        """True where a key comes after the query: (rows, columns)."""
        rows = self._positions(self.rank, device).narrow(0, *tile.rows)
        ranks = range(len(self.shard.sizes))
        columns = torch.cat([self._positions(r, device) for r in ranks]).narrow(0, *tile.columns)
        return rows[:, None] < columns

    def _stretches(self, rank: int) -> list[_Stretch]:
        if self.shard.dim != self.dims[0]:  # runs of an inner axis are interleaved
            return [_Stretch(0, self.shard.sizes[rank] * self._others, None)]
        found, at = [], 0
        for first, length in self.shard.runs[rank]:
            found.append(_Stretch(at, length * self._others, first * self._others))
            at += length * self._others
        return found

    def _positions(self, rank: int, device: torch.device) -> Tensor:
        """The place of each of ``rank``'s folded positions in the whole sequence."""
        place = torch.zeros(1, dtype=torch.int64, device=device)
        for dim, length in zip(self.dims, self.lengths, strict=True):
            runs = self.shard.runs[rank] if dim == self.shard.dim else [(0, length)]
            own = torch.cat([torch.arange(a, a + n, device=device) for a, n in runs])
            place = (place[:, None] * length + own).flatten()
        return place


def _merged(tiles: list[Tile]) -> list[Tile]:
    """Unmasked neighbours as one: fewer and larger products."""
    found: list[Tile] = []
    for tile in tiles:
        last = found[-1] if found else None
        if last is None or last.masked or tile.masked:
            found.append(tile)
        elif last.columns == tile.columns and sum(last.rows) == tile.rows[0]:
            rows = (last.rows[0], last.rows[1] + tile.rows[1])
            found[-1] = Tile(rows=rows, columns=tile.columns, masked=False)
        elif last.rows == tile.rows and sum(last.columns) == tile.columns[0]:
            columns = (last.columns[0], last.columns[1] + tile.columns[1])
            found[-1] = Tile(rows=tile.rows, columns=columns, masked=False)
        else:
            found.append(tile)
    return found
