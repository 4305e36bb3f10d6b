"""One rank's queries as rows of scores, for any attended dims and any number of key heads.

    q (B, *axes, Z, D)   ->  rows (b, s g, D)     the g query heads of a key head together
    k (B, *axes, Zkv, D) ->  keys (b, S, D)       of every rank, in rank order
Scores are (b, s g, S), with b = B x other axes x Zkv, and s of the S positions on this rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple, final

import torch
from torch import Tensor

from spbench.layers.attention import Scores, fold, unfold
from spbench.layers.causal_tiles import Band, Tile
from spbench.layers.in_place import summed_products
from spbench.workload.sharding import Shard


class Slices(NamedTuple):
    """A tile as slices of the scores."""

    rows: slice
    columns: slice


@final
class Rows:
    """How q, k, scores and bias of ``rank`` are laid out in a ring along ``shard``."""

    def __init__(
        self,
        q_shape: Sequence[int],
        k_shape: Sequence[int],
        scores: Scores,
        shard: Shard,
        rank: int,
    ) -> None:
        self.q_shape, self.k_shape, self.shard = q_shape, k_shape, shard
        self.key_heads, self.group = k_shape[-2], q_shape[-2] // k_shape[-2]
        self.band = Band(
            shard=shard,
            rank=rank,
            dims=scores.dims,
            lengths=tuple(shard.length if d == shard.dim else q_shape[d] for d in scores.dims),
            causal=scores.causal,
        )

    @cached_property
    def keys(self) -> Shard:
        """How all folded keys, (b, S, D), are shared between the ranks."""
        owners = range(len(self.shard.sizes))
        return Shard.of_sizes(1, tuple(self.band.columns_of(owner)[1] for owner in owners))

    def fold(self, q: Tensor) -> Tensor:
        grouped = fold(q, self.band.dims).unflatten(1, (self.key_heads, self.group))
        rows = grouped.transpose(2, 3).clone(memory_format=torch.contiguous_format)
        return rows.flatten(2, 3).flatten(0, 1)

    def unfold(self, rows: Tensor) -> Tensor:
        grouped = rows.unflatten(0, (-1, self.key_heads)).unflatten(2, (-1, self.group))
        return unfold(grouped.transpose(2, 3).flatten(1, 2), self.q_shape, self.band.dims)

    def fold_keys(self, keys: Tensor) -> Tensor:
        """This rank's keys as they go round the ring, (b, s, D), the positions outermost."""
        folded = fold(keys, self.band.dims).flatten(0, 1)
        return folded.transpose(0, 1).contiguous().transpose(0, 1)

    def unfold_keys(self, keys: Tensor) -> Tensor:
        """``fold_keys`` undone."""
        return unfold(keys.unflatten(0, (-1, self.key_heads)), self.k_shape, self.band.dims)

    @cached_property
    def tiles(self) -> list[Slices]:
        """All products of this rank's rows: one, or one for each part that a mask leaves."""
        return [self._slices(tile) for tile in self.band.all_tiles]

    def _slices(self, tile: Tile) -> Slices:
        (row, rows), (column, columns), g = tile.rows, tile.columns, self.group
        return Slices(slice(row * g, (row + rows) * g), slice(column, column + columns))

    def product(self, left: Tensor, keys: Tensor, hidden: float) -> Tensor:
        """(b, rows, D) times (b, S, D)^T; ``hidden`` in the tiles that are masked whole."""
        scores = left.new_empty(*left.shape[:2], self.keys.length)
        if self.band.causal:
            scores.fill_(hidden)
        for rows, columns in self.tiles:
            right = keys[:, columns].transpose(1, 2)
            torch.bmm(left[:, rows], right, out=scores[:, rows, columns])
        return scores

    def times_keys(self, row: Tensor, keys: Tensor) -> Tensor:
        """(b, rows, S) times (b, S, D), without the tiles that are masked whole."""
        tiles = [(rows, row[:, rows, columns], keys[:, columns]) for rows, columns in self.tiles]
        return summed_products(tiles, row.shape[1])

    def transposed_product(self, row: Tensor, right: Tensor) -> Tensor:
        """(b, rows, S)^T times (b, rows, D), without the tiles that are masked whole."""
        turned = row.transpose(1, 2)
        tiles = [
            (columns, turned[:, columns, rows], right[:, rows]) for rows, columns in self.tiles
        ]
        return summed_products(tiles, row.shape[2])

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
        by_sample = scores.unflatten(0, (self.q_shape[0], -1, self.key_heads))
        by_sample += grouped.flatten(2, 3)[:, None]

    def bias_gradient(self, d_scores: Tensor) -> Tensor:
        summed = d_scores.unflatten(0, (self.q_shape[0], -1, self.key_heads)).sum(1)
        return summed.unflatten(2, (-1, self.group)).permute(0, 2, 4, 1, 3).flatten(3)
