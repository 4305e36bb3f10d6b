"""One rank's queries as rows of scores, for any attended dims and any number of key heads.

    q (B, *axes, Z, D)   ->  rows (b, s g, D)     the g query heads of a key head together
    k (B, *axes, Zkv, D) ->  keys (S, b, D)       of every rank, in rank order
Scores are (b, s g, S), with b = B x other axes x Zkv, and s of the S positions on this rank.
"""

import math
from functools import cached_property
from typing import final

import torch
from torch import Tensor

from spbench.comm.resharding import undone
from spbench.layers.attention import Scores
from spbench.layers.causal_tiles import Band, Tile
from spbench.layers.in_place import summed_products
from spbench.workload.sharding import Shard


@final
class Rows:
    """How q, k, scores and bias of ``rank`` are laid out in a ring along ``shard``."""

    def __init__(self, q: Tensor, k: Tensor, scores: Scores, shard: Shard, rank: int) -> None:
        self.shard, self.batch = shard, q.shape[0]
        self.key_heads, self.group = k.shape[-2], q.shape[-2] // k.shape[-2]
        heads, dims = q.ndim - 2, scores.dims
        others = [dim for dim in range(heads) if dim not in dims]
        self._others, self._positions = ([q.shape[d] for d in each] for each in (others, dims))
        # Of (B, *axes, Zkv, g, D), and of (B, *axes, Zkv, D).
        self._rows_order = [*others, heads, *dims, heads + 1, heads + 2]
        self._keys_order = [*dims, *others, heads, heads + 1]
        self.band = Band(
            shard=shard,
            rank=rank,
            dims=dims,
            lengths=tuple(shard.length if d == shard.dim else q.shape[d] for d in dims),
            causal=scores.causal,
        )

    @cached_property
    def keys(self) -> Shard:
        """How all keys, (S, b, D), are shared between the ranks."""
        owners = range(len(self.shard.sizes))
        return Shard.of_sizes(0, tuple(self.band.columns_of(owner)[1] for owner in owners))

    def fold(self, q: Tensor) -> Tensor:
        grouped = q.unflatten(-2, (self.key_heads, self.group)).permute(self._rows_order)
        return grouped.reshape(-1, math.prod(self._positions) * self.group, q.shape[-1])

    def unfold(self, rows: Tensor) -> Tensor:
        """(b, s g, D) -> (B, *axes, Zkv, g, D), a view."""
        apart = rows.unflatten(1, (*self._positions, self.group))
        apart = apart.unflatten(0, (*self._others, self.key_heads))
        return apart.permute(undone(self._rows_order))

    def fold_keys(self, keys: Tensor) -> Tensor:
        """This rank's keys as they go round the ring, (s, b, D)."""
        outermost = keys.permute(self._keys_order).contiguous()
        return outermost.view(math.prod(self._positions), -1, keys.shape[-1])

    def unfold_keys(self, keys: Tensor) -> Tensor:
        """``fold_keys`` undone, a view."""
        apart = keys.unflatten(1, (*self._others, self.key_heads)).unflatten(0, self._positions)
        return apart.permute(undone(self._keys_order))

    @cached_property
    def tiles(self) -> list[tuple[slice, slice]]:
        """All products of this rank's rows: one, or one for each part that a mask leaves."""
        return [self._slices(tile) for tile in self.band.all_tiles]

    @cached_property
    def hidden_tiles(self) -> list[tuple[slice, slice]]:
        """Parts of this rank's scores that a mask hides whole."""
        owners = range(len(self.shard.sizes))
        return [
            self._slices(tile) for each in owners for tile in self.band.tiles(each, hidden=True)
        ]

    def _slices(self, tile: Tile) -> tuple[slice, slice]:
        """Rows and columns of a tile in the scores."""
        (row, rows), (column, columns), g = tile.rows, tile.columns, self.group
        return slice(row * g, (row + rows) * g), slice(column, column + columns)

    def product(self, left: Tensor, keys: Tensor, hidden: float) -> Tensor:
        """(b, rows, D) times (S, b, D)^T; ``hidden`` in the tiles that are masked whole."""
        scores = left.new_empty(*left.shape[:2], self.keys.length)
        for rows, columns in self.hidden_tiles:
            scores[:, rows, columns] = hidden
        for rows, columns in self.tiles:
            right = keys[columns].permute(1, 2, 0)
            torch.bmm(left[:, rows], right, out=scores[:, rows, columns])
        return scores

    def times_keys(self, row: Tensor, keys: Tensor) -> Tensor:
        """(b, rows, S) times (S, b, D), without the tiles that are masked whole."""
        by_row = keys.transpose(0, 1)
        tiles = [(rows, row[:, rows, columns], by_row[:, columns]) for rows, columns in self.tiles]
        return summed_products(tiles, row.shape[1], dim=1)

    def turned_product(self, left: Tensor, row: Tensor) -> Tensor:
        """(b, rows, D)^T times (b, rows, S) as (b, D, S); a CPU is slower with (b, S, D)."""
        tiles = [(columns, left[:, rows].mT, row[:, rows, columns]) for rows, columns in self.tiles]
        return summed_products(tiles, row.shape[2], dim=2)

    def mask_(self, scores: Tensor) -> Tensor:
        """Writes minus infinity where a key comes after the query."""
        for owner in range(len(self.shard.sizes)):
            for tile in self.band.tiles(owner):
                if tile.masked:
                    hidden = self.band.hidden(tile, owner, scores.device)
                    part = scores[:, *self._slices(tile)].unflatten(1, (-1, self.group))
                    part.masked_fill_(hidden[:, None], -torch.inf)
        return scores

    def add_bias_(self, scores: Tensor, bias: Tensor) -> None:
        """Adds the ``bias`` (B, s, S, Z) of this rank's queries."""
        grouped = bias.unflatten(-1, (self.key_heads, self.group)).permute(0, 3, 1, 4, 2)
        by_sample = scores.unflatten(0, (self.batch, -1, self.key_heads))
        by_sample += grouped.flatten(2, 3)[:, None]

    def bias_gradient(self, d_scores: Tensor) -> Tensor:
        summed = d_scores.unflatten(0, (self.batch, -1, self.key_heads)).sum(1)
        return summed.unflatten(2, (-1, self.group)).permute(0, 2, 4, 1, 3).flatten(3)
