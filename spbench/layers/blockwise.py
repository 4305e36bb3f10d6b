r"""Attention in blocks of keys: the part of each, the merge of parts, the gradients of each.

A softmax over all keys is one over each block, weighted by what the block has of the whole
(Liu et al., Ring Attention, 2023; Dao et al., FlashAttention, 2022, section 3.1):

    lse_i = log sum exp(q k_i)      out_i = softmax(q k_i) v_i
    lse = log sum_i exp(lse_i)      out = sum_i exp(lse_i - lse) out_i

Backward of a block needs no other: from the merged out and lse a kernel's backward gives what the
block adds to dQ, and its dK and dV. Tensors are folded, (b, Z, S, D).

Keys and values travel together between ranks, (S, 2, b, Z, D): positions are outermost, so that
blocks of any length, and the first keys of a block, lie in one piece of memory. So do their
gradients. Values of another size lie behind their keys, (S, b, Z, D + Dv).

Ranks may form rows and columns: each then attends with the queries of its row to the keys of its
column. What a row computes for a rank's queries are as many parts as it has columns; the rank
merges them. Under a causal mask both are put in order of positions. The row's queries are then an
early run and a late one, in each of which the rank has keys of its own; six products are all,
whatever the ranks:

                           keys before    its own    keys behind
    queries before it          x             .            .
    of the same positions      x             \            .
    queries behind it          x             x            .
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple, final

import torch
from torch import Tensor

from spbench.comm.collectives import Collectives
from spbench.layers.kernels import (
    Part,
    add_gradients_of_tiles,
    attend_block,
    block_gradients,
    from_row,
    merge,
    tiles_part,
)
from spbench.workload.mask import Mask, Runs
from spbench.workload.mask import Tile as Shown
from spbench.workload.mesh import Mesh
from spbench.workload.sharding import Run, Shard

__all__ = ["Part", "attend_block", "block_gradients", "from_row", "merge"]
"""What rings and gathers take from here of the kernels: parts, and what is done with them."""


def added(total: Tensor | None, part: Tensor, row: int) -> Tensor:
    """``total`` and a part of its rows from ``row`` on, in float32 at least and in its memory."""
    if total is None:
        return part
    total = total.to(torch.promote_types(total.dtype, torch.float32))
    from_row(total, row).add_(part)
    return total


# Keys and values on their way between ranks


class Tile(NamedTuple):
    """What a rank computes with a block of keys: the queries from ``row`` on and the first keys."""

    row: int
    keys: int
    causal: bool
    """Whether it lies on the diagonal: a query sees no later key."""


def tile(keys: Shard, rank: int, owner: int, causal: bool) -> Tile:
    """The tile of the queries of ``rank`` and the keys of ``owner``; without keys: nothing.

    With zigzag shards late queries see all keys of a later rank, all queries the early keys of an
    earlier one.

    Parameters
    ----------
    keys : Shard
        Which positions each rank holds.
    rank, owner : int
        Whose queries, and whose keys.
    causal : bool
        Whether a query sees no later key.

    Returns
    -------
    Tile
        The first of the queries that see any, and how many of the keys.
    """
    mine, others = keys.runs[rank], keys.runs[owner]
    if not causal or owner == rank:
        return Tile(0, keys.sizes[owner], causal)
    # Queries that lie before all keys of the owner see none; they are the first in memory.
    blind = sum(length for first, length in mine if first < others[0][0])
    return Tile(blind, sum(n for first, n in others if first < mine[-1][0]), causal=False)


def folded_shard(shard: Shard, positions: int, rank: int) -> Shard:
    """How folded keys are shared, if ``rank`` has ``positions`` of them."""
    # Folded positions of one of the sharded axis: 8 of time x 4 of space on this rank have span 4.
    return shard.spread(0, positions // shard.sizes[rank])


Widths = tuple[int, ...]
"""The sizes of heads of what travels together."""


def widths(*xs: Tensor) -> Widths:
    """What ``unpack`` has to know of tensors (b, Z, S, D)."""
    return tuple(x.shape[-1] for x in xs)


def pack(*xs: Tensor) -> Tensor:
    """K and V (b, Z, S, D) as they travel, (S, 2, b, Z, D); of two sizes (S, b, Z, D + Dv)."""
    outermost = [x.permute(2, 0, 1, 3) for x in xs]
    return torch.stack(outermost, 1) if _are_equal(widths(*xs)) else torch.cat(outermost, -1)


def unpack(packed: Tensor, sizes: Widths) -> Sequence[Tensor]:
    """``pack`` undone, as views. ``sizes``: the ``widths`` of what was packed."""
    if _are_equal(sizes):  # (S, 2, b, Z, D) -> (2, b, Z, S, D)
        return packed.permute(1, 2, 3, 0, 4).unbind()
    return packed.permute(1, 2, 0, 3).split(sizes, -1)  # (b, Z, S, D + Dv)


def _are_equal(sizes: Widths) -> bool:
    return len(set(sizes)) == 1


def first(packed: Tensor, count: int) -> Tensor:
    """The first of packed keys and values; of all no view, which takes a host its time."""
    return packed[:count] if count < len(packed) else packed


def add_gradients(sums: Tensor, gradients: Sequence[Tensor]) -> Tensor:
    """Packed ``sums``, to which the gradients of the first of these k and v are added in place."""
    if gradients:
        olds = unpack(first(sums, gradients[0].shape[2]), widths(*gradients))
        for old, gradient in zip(olds, gradients, strict=True):
            old.add_(gradient)
    return sums


def by_position(x: Tensor, keys: Shard, dim: int = 0) -> Tensor:
    """``dim`` in order of positions, from rank order."""
    runs = [run for of_rank in keys.runs for run in of_rank]
    return _rearranged(x, runs, sorted(runs), dim)


def by_rank(x: Tensor, keys: Shard, dim: int = 0) -> Tensor:
    """``by_position`` undone."""
    runs = [run for of_rank in keys.runs for run in of_rank]
    return _rearranged(x, sorted(runs), runs, dim)


def _rearranged(x: Tensor, before: list[Run], after: list[Run], dim: int) -> Tensor:
    """Runs along ``dim`` in another order; itself where that is no other."""
    if before == after:
        return x
    parts = dict(zip(before, x.split([length for _, length in before], dim), strict=True))
    return torch.cat([parts[run] for run in after], dim)


def put(gradients: Sequence[Tensor], wholes: Sequence[Tensor], runs: Sequence[Run]) -> None:
    """Writes dK and dV (b, Z, S, D) to these runs of all, one after another."""
    for gradient, into in zip(gradients, wholes, strict=True):
        parts = gradient.split([length for _, length in runs], 2)
        for part, run in zip(parts, runs, strict=True):
            into.narrow(2, *run).copy_(part)


# Ranks in rows and columns


@final
class AttentionGrid:
    """This rank's row and column, for folded queries and keys (b, Z, S, D)."""

    def __init__(
        self,
        comm: Collectives,
        positions: Shard,
        causal: bool,
        held: Sequence[Runs],
        mask: Mask | None,
    ) -> None:
        """``positions``: those of all ranks, folded; ``held``: the same in the whole sequence, for
        a ``mask``."""
        self.in_row, self.in_column = comm.along("columns"), comm.along("rows")
        mesh = Mesh.of({"rows": self.in_column.size, "columns": self.in_row.size})
        row, column = (mesh.members(comm.rank, axis) for axis in ("columns", "rows"))
        self.queries, self.keys = positions.among(row), positions.among(column)
        """Positions of the row's queries and of the column's keys, in rank order."""
        self.causal = causal and mask is None  # a mask has it in its tiles
        self.tiles = list(tiles(self.queries, self.keys, causal)) if self.causal else []
        self.shown: Sequence[Shown] | None = None
        """The tiles of a mask, in rank order."""
        if mask is not None:
            rows, keys = (
                tuple(run for rank in members for run in held[rank]) for members in (row, column)
            )
            self.shown = mask.tiles(rows, keys)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Part:
        """Attention of the row's queries to the column's keys; without any: 0, of weight 0."""
        if self.shown is not None:
            return tiles_part(q, k, v, self.shown)
        if not self.causal:  # one tile
            return attend_block(q, k, v)
        q, (k, v) = self._ordered(self.queries, q)[0], self._ordered(self.keys, k, v)
        wide = torch.promote_types(q.dtype, torch.float32)
        rows = q.new_zeros(*q.shape[:-1], v.shape[-1], dtype=wide)
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
        """What these keys add to dQ of the row, and these queries to dK and dV of the column.

        Parameters
        ----------
        grad, q, out : Tensor
            (b, Z, S, D) of the queries of the row: the gradient of their out, themselves, and their
            out.
        lse : Tensor
            (b, Z, S), their log-sum-exps over all keys.
        k, v : Tensor
            (b, Zkv, K, D) of the keys of the column.

        Returns
        -------
        Sequence of Tensor
            dQ, dK and dV, in rank order as they came; in float32 at least under a mask.
        """
        if self.shown is not None:
            sums = [x.new_zeros(x.shape, dtype=lse.dtype) for x in (q, k, v)]
            add_gradients_of_tiles(sums, (grad, q, out, lse), (k, v), self.shown)
            return sums
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
            for total, gradient in zip(into, d_block, strict=True):
                total.add_(gradient)
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
        # The first product of the picture: keys before the run are one run, as they are in order.
        before = sum(n for (at, n), _ in blocks if at < first)
        if before:
            yield (row, length), (0, before), False
        for (at, n), column in blocks:
            start, end = at - first, at - first + n
            if 0 <= start < length:
                # The rank's own keys lie on the diagonal; queries of the run behind see them all.
                yield (row + start, n), (column, n), True
                if end < length:
                    yield (row + end, length - end), (column, n), False


def _in_memory(runs: Sequence[Run]) -> list[tuple[Run, int]]:
    """Each run, and where it begins if they lie end to end."""
    return list(zip(runs, accumulate((length for _, length in runs), initial=0), strict=False))


def _cut(run: Run, *tensors: Tensor) -> list[Tensor]:
    return [x.narrow(2, *run) for x in tensors]
