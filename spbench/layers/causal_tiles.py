"""The parts of a score matrix that a ring computes under a causal mask, and those it skips.

A rank's queries meet each rank's keys in turn. Each pair of their chunks is computed whole,
computed and masked (on the diagonal), or skipped. With zigzag shards that is the same work on
every rank: two chunk pairs of four for the keys of each other rank, three for its own.

                 keys of an earlier rank    its own    keys of a later rank
    early chunk      x .                     \\ .            . .
    late chunk       x .                     x \\            x x

Rows are this rank's folded queries, columns all keys in rank order.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from spbench.workload.sharding import Shard, runs_of, shard_sizes


@dataclass(frozen=True)
class Tile:
    """Scores of one product, as (first, count) of this rank's rows and of all columns."""

    rows: tuple[int, int]
    columns: tuple[int, int]
    masked: bool
    """Whether some keys of the tile come after their query."""


class _Stretch(NamedTuple):
    """Folded positions end to end in a rank's memory, from ``first`` to before ``end``."""

    at: int
    length: int
    first: int
    end: int


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
        """First column and number of columns of the keys of ``owner``."""
        return self.shard.offset(owner) * self._others, self.shard.sizes[owner] * self._others

    def tiles(self, owner: int, hidden: bool = False) -> list[Tile]:
        """Tiles to compute of this rank's queries with the keys of ``owner``, or those to skip."""
        start, count = self.columns_of(owner)
        if not self.causal:
            rows = self.shard.sizes[self.rank] * self._others
            return [] if hidden else [Tile((0, rows), (start, count), masked=False)]
        return _merged(
            Tile((q.at, q.length), (start + k.at, k.length), k.end - 1 > q.first and not hidden)
            for q, k in product(self._stretches(self.rank), self._stretches(owner))
            if hidden == (k.first >= q.end)
        )

    @cached_property
    def all_tiles(self) -> list[Tile]:
        """Tiles to compute of this rank's queries with all keys."""
        return _merged(tile for owner in range(len(self.shard.sizes)) for tile in self.tiles(owner))

    def hidden(self, tile: Tile, owner: int, device: torch.device) -> Tensor:
        """True where a key of ``owner`` comes after the query: (rows, columns)."""
        rows = self._positions(self.rank, device).narrow(0, *tile.rows)
        column, count = tile.columns
        first = column - self.columns_of(owner)[0]
        return rows[:, None] < self._positions(owner, device).narrow(0, first, count)

    def _stretches(self, rank: int) -> list[_Stretch]:
        """Runs of the outermost attended dim.

        Where another dim is sharded, every rank holds all of the outermost one; cut into 16
        stretches, all but 1/32 of what is masked is skipped.
        """
        outer = self.dims[0] == self.shard.dim
        count = self.lengths[0]
        runs = self.shard.runs[rank] if outer else runs_of(shard_sizes(count, min(count, 16)))
        span = prod(self.lengths[1:])
        held = span if outer else span * self.shard.sizes[rank] // self.shard.length
        stretches, at = [], 0
        for first, length in runs:
            stretches.append(_Stretch(at, length * held, first * span, (first + length) * span))
            at += length * held
        return stretches

    def _positions(self, rank: int, device: torch.device) -> Tensor:
        """The place of each of ``rank``'s folded positions in the whole sequence."""
        place = torch.zeros(1, dtype=torch.int64, device=device)
        for dim, length in zip(self.dims, self.lengths, strict=True):
            runs = self.shard.runs[rank] if dim == self.shard.dim else [(0, length)]
            own = torch.cat([torch.arange(a, a + n, device=device) for a, n in runs])
            place = (place[:, None] * length + own).flatten()
        return place


def _merged(tiles: Iterable[Tile]) -> list[Tile]:
    """Neighbours without a mask as one tile: fewer and larger products."""
    merged: list[Tile] = []
    for tile in tiles:
        last = merged[-1] if merged and not (merged[-1].masked or tile.masked) else None
        if last and last.columns == tile.columns and sum(last.rows) == tile.rows[0]:
            merged[-1] = replace(last, rows=(last.rows[0], last.rows[1] + tile.rows[1]))
        elif last and last.rows == tile.rows and sum(last.columns) == tile.columns[0]:
            merged[-1] = replace(last, columns=(last.columns[0], last.columns[1] + tile.columns[1]))
        else:
            merged.append(tile)
    return merged
