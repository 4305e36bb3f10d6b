"""Ranks in rows and columns: each attends with the queries of its row to the keys of its column.

What a row computes for a rank's queries are as many parts as it has columns; the rank merges them.
Under a causal mask both are put in order of positions. The row's queries are then an early run and
a late one, in each of which the rank has keys of its own; six products are all, whatever the ranks:

                           keys before    its own    keys behind
    queries before it          x             .            .
    of the same positions      x             \\            .
    queries behind it          x             x            .
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import final

import torch
from torch import Tensor

from spbench.comm.collectives import Collectives
from spbench.layers.blockwise import (
    Part,
    attend_block,
    block_gradients,
    by_position,
    by_rank,
    merge,
)
from spbench.workload.mesh import Mesh
from spbench.workload.sharding import Run, Shard


@final
class AttentionGrid:
    """This rank's row and column, for folded queries and keys (b, Z, S, D)."""

    def __init__(self, comm: Collectives, positions: Shard, causal: bool) -> None:
        """``positions``: those of all ranks, folded."""
        self.in_row, self.in_column = comm.along("columns"), comm.along("rows")
        mesh = Mesh.of({"rows": self.in_column.size, "columns": self.in_row.size})
        row, column = (mesh.members(comm.rank, axis) for axis in ("columns", "rows"))
        self.queries, self.keys = positions.among(row), positions.among(column)
        """Positions of the row's queries and of the column's keys, in rank order."""
        self.causal = causal
        self.tiles = list(tiles(self.queries, self.keys, causal))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Part:
        """Attention of the row's queries to the column's keys; without any: 0, of weight 0."""
        if not self.causal:  # one tile
            return attend_block(q, k, v)
        q, (k, v) = self._ordered(self.queries, q)[0], self._ordered(self.keys, k, v)
        rows = q.new_zeros(q.shape, dtype=torch.promote_types(q.dtype, torch.float32))
        total = Part(rows, rows.new_full(q.shape[:-1], -torch.inf))
        for queries, keys, causal in self.tiles:
            part = attend_block(*_cut(queries, q), *_cut(keys, k, v), causal=causal)
            merge(Part(*_cut(queries, *total)), part)
        return Part(*self._by_rank(self.queries, *total))

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
    ) -> Sequence[Tensor]:
        """What these keys add to dQ of the row, and these queries to dK and dV of the column."""
        if not self.causal:
            return block_gradients(grad, q, k, v, Part(out, lse))
        grad, q, out, lse = self._ordered(self.queries, grad, q, out, lse)
        k, v = self._ordered(self.keys, k, v)
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
        return self._by_rank(self.queries, sums[0]) + self._by_rank(self.keys, *sums[1:])

    def _ordered(self, held: Shard, *tensors: Tensor) -> list[Tensor]:
        return [by_position(x, held, 2) if self.causal else x for x in tensors]

    def _by_rank(self, held: Shard, *tensors: Tensor) -> list[Tensor]:
        return [by_rank(x, held, 2) if self.causal else x for x in tensors]


def tiles(queries: Shard, keys: Shard, causal: bool) -> Iterator[tuple[Run, Run, bool]]:
    """Queries and keys that see each other, as runs, and whether a query sees no later key.

    Under a mask both are in order of positions. A run of keys lies in a run of queries or beside
    it, as one rank of a row and a column is in both.
    """
    if not causal:
        yield (0, queries.length), (0, keys.length), False
        return
    blocks = _in_memory(sorted(run for of_rank in keys.runs for run in of_rank if run[1]))
    for (first, length), row in _in_memory(queries.merged):
        before = sum(n for (at, n), _ in blocks if at < first)
        if before:
            yield (row, length), (0, before), False
        for (at, n), column in blocks:
            start, end = at - first, at - first + n
            if 0 <= start < length:
                yield (row + start, n), (column, n), True
                if end < length:
                    yield (row + end, length - end), (column, n), False


def _in_memory(runs: Sequence[Run]) -> list[tuple[Run, int]]:
    """Each run, and where it begins if they lie end to end."""
    return list(zip(runs, accumulate((length for _, length in runs), initial=0), strict=False))


def _cut(run: Run, *tensors: Tensor) -> list[Tensor]:
    return [x.narrow(2, *run) for x in tensors]
