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
    """Scores to compute: local rows, columns in rank order, and whether some are masked."""

    rows: tuple[int, int]
    columns: tuple[int, int]
    masked: bool


class Slices(NamedTuple):
    """A tile as slices of the scores."""

    rows: slice
    columns: slice


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
        """Where the keys of ``owner`` are, as first column and number."""
        return self.shard.offset(owner) * self._others, self.shard.sizes[owner] * self._others

    def tiles(self, owner: int) -> list[Tile]:
        """What to compute of this rank's queries with the keys of ``owner``."""
        start, count = self.columns_of(owner)
        if not self.causal:
            rows = self.shard.sizes[self.rank] * self._others
            return [Tile((0, rows), (start, count), masked=False)]
        pairs = product(self._stretches(self.rank), self._stretches(owner))
        return merged(
            [
                Tile((q.at, q.length), (start + k.at, k.length), masked=k.end - 1 > q.first)
                for q, k in pairs
                if k.first < q.end
            ]
        )

    @cached_property
    def all_tiles(self) -> list[Tile]:
        """Those of all owners."""
        every = [tile for owner in range(len(self.shard.sizes)) for tile in self.tiles(owner)]
        return merged(every)

    def hidden(self, tile: Tile, owner: int, device: torch.device) -> Tensor:
        """True where a key of ``owner`` comes after the query: (rows, columns)."""
        rows = self._positions(self.rank, device).narrow(0, *tile.rows)
        column, count = tile.columns
        first = column - self.columns_of(owner)[0]
        return rows[:, None] < self._positions(owner, device).narrow(0, first, count)

    def _stretches(self, rank: int) -> list[_Stretch]:
        """Runs of the outermost attended dim: those of the shard, or of what lies outside it.

        In the latter case every rank holds all of that dim, and so many stretches of it leave
        out all but 1/32 of what is masked.
        """
        outer = self.dims[0] == self.shard.dim
        count = self.lengths[0]
        runs = self.shard.runs[rank] if outer else runs_of(shard_sizes(count, min(count, 16)))
        span = prod(self.lengths[1:])
        held = span if outer else span * self.shard.sizes[rank] // self.shard.length
        found, at = [], 0
        for first, length in runs:
            found.append(_Stretch(at, length * held, first * span, (first + length) * span))
            at += length * held
        return found

    def _positions(self, rank: int, device: torch.device) -> Tensor:
        """The place of each of ``rank``'s folded positions in the whole sequence."""
        place = torch.zeros(1, dtype=torch.int64, device=device)
        for dim, length in zip(self.dims, self.lengths, strict=True):
            runs = self.shard.runs[rank] if dim == self.shard.dim else [(0, length)]
            own = torch.cat([torch.arange(a, a + n, device=device) for a, n in runs])
            place = (place[:, None] * length + own).flatten()
        return place


def merged(tiles: list[Tile]) -> list[Tile]:
    """Unmasked neighbours as one: fewer and larger products."""
    found: list[Tile] = []
    for tile in tiles:
        if found and not (found[-1].masked or tile.masked):
            last = found[-1]
            (row, rows), (column, columns) = last.rows, last.columns
            if last.columns == tile.columns and row + rows == tile.rows[0]:
                found[-1] = replace(last, rows=(row, rows + tile.rows[1]))
                continue
            if last.rows == tile.rows and column + columns == tile.columns[0]:
                found[-1] = replace(last, columns=(column, columns + tile.columns[1]))
                continue
        found.append(tile)
    return found
