"""Ranks in rows and columns: each attends with the queries of its row to the keys of its column.

What a row computes for a rank's queries are as many parts as it has columns; the rank merges them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

import torch
from torch import Tensor

from spbench.comm.collectives import Collectives
from spbench.layers.blockwise import Part, attend_block, block_gradients, merge
from spbench.layers.key_blocks import tile
from spbench.workload.mesh import Members, Mesh
from spbench.workload.sharding import Run, Shard, runs_of


@final
class AttentionGrid:
    """This rank's row and column, for folded queries and keys (b, Z, S, D)."""

    def __init__(self, comm: Collectives, positions: Shard, causal: bool) -> None:
        """``positions``: those of all ranks, folded."""
        self.in_row, self.in_column = comm.along("columns"), comm.along("rows")
        mesh = Mesh.of({"rows": self.in_column.size, "columns": self.in_row.size})
        row, column = (mesh.members(comm.rank, axis) for axis in ("columns", "rows"))
        self.queries, self.keys = positions.among(row), positions.among(column)
        """Those of the row and of the column, in rank order."""
        self.tiles = list(tiles(positions, row, column, causal))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Part:
        """Attention of the row's queries to the column's keys; without any: 0, of weight 0."""
        wide = torch.promote_types(q.dtype, torch.float32)
        rows = q.new_zeros(q.shape, dtype=wide)
        total = Part(rows, rows.new_full(q.shape[:-1], -torch.inf))
        for queries, keys, causal in self.tiles:
            part = attend_block(*_cut(queries, q), *_cut(keys, k, v), causal=causal)
            if len(self.tiles) == 1 and part.out.shape == q.shape:
                return part
            merge(Part(*_cut(queries, *total)), part)
        return total

    def merged(self, part: Part) -> Part:
        """This rank's own rows, from the parts of all ranks of its row."""
        own = self.queries.along(1)
        apart = Shard.of_sizes(0, (1,) * self.in_row.size)
        outs, lses = (
            self.in_row.switch(x.movedim(2, 0)[None], before=apart, after=own)[0] for x in part
        )
        parts = [Part(*(x.movedim(0, 2) for x in pair)) for pair in zip(outs, lses, strict=True)]
        total = parts.pop(self.in_row.rank)  # it has each query's own key: no row without any
        for other in parts:
            total = merge(total, other)
        return total

    def gradients(
        self, grad: Tensor, q: Tensor, out: Tensor, lse: Tensor, k: Tensor, v: Tensor
    ) -> list[Tensor]:
        """What these keys add to dQ of the row, and these queries to dK and dV of the column."""
        wide = torch.promote_types(q.dtype, torch.float32)
        sums = [x.new_zeros(x.shape, dtype=wide) for x in (q, k, v)]
        for queries, keys, causal in self.tiles:
            (d_out, rows, *whole), (block_k, block_v) = (
                _cut(queries, grad, q, out, lse),
                _cut(keys, k, v),
            )
            d_block = block_gradients(d_out, rows, block_k, block_v, Part(*whole), causal=causal)
            into = _cut(queries, sums[0]) + _cut(keys, *sums[1:])
            for total, each in zip(into, d_block, strict=True):
                total.add_(each)
        return sums


def tiles(
    positions: Shard, row: Members, column: Members, causal: bool
) -> Iterator[tuple[Run, Run, bool]]:
    """Queries of the row and keys of the column that see each other, as runs in rank order, and
    whether a query sees no later key."""
    queries, keys = (runs_of(positions.among(members).sizes) for members in (row, column))
    if not causal:
        yield (0, sum(queries[-1])), (0, sum(keys[-1])), False
        return
    for rank, (first, length) in zip(row, queries, strict=True):
        for owner, (at, _) in zip(column, keys, strict=True):
            seen = tile(positions, rank, owner, causal)
            if seen.keys and seen.row < length:
                yield (first + seen.row, length - seen.row), (at, seen.keys), seen.causal


def _cut(run: Run, *tensors: Tensor) -> list[Tensor]:
    return [x.narrow(2, *run) for x in tensors]
