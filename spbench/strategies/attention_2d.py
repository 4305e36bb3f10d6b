"""Attention2D (Elango, 2025, arXiv 2503.15758): queries along rows of ranks, keys along columns.

Ranks stand in R rows and C columns. Each gathers its row's queries and its column's keys and
values, computes the attention of those queries over those keys, and returns to each rank of the row
the partial result for that rank's queries; each rank merges its C parts by log-sum-exp.

    q      (B, S/N, Z, D)  --gather in the row-->       (B, S/R, Z, D)     (C - 1) M / N sent
    k, v   (B, S/N, Z, D)  --gather in the column-->    (B, S/C, Z, D)   2 (R - 1) K / N
    out    (B, S/R, Z, D)  --all-to-all in the row-->   C parts (B, S/N, Z, D)   (C - 1) M / N

Backward gathers q, out and its gradient in the row, the keys anew in the column, and scatters the
sums of dQ, and of dK and dV. Under a causal mask shards are zigzag: all ranks compute as much.
Under a window a rank computes what its row's queries see of its column's keys; all are gathered.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from math import isqrt
from typing import Any, ClassVar, final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from spbench.comm.collectives import Collectives
from spbench.comm.compiler import applied
from spbench.layers.attention import Folding, Scores
from spbench.layers.blockwise import AttentionGrid, Part, folded_shard, pack, unpack, widths
from spbench.layers.kernels import gradient_of_sinks, with_sinks
from spbench.layers.memory_order import put_outermost
from spbench.strategies.fixed_axis import AUTO, BalancedAxis, BalancedPlan, FixedPlan
from spbench.strategies.refusals import (
    blocks_why_not,
    divisors,
    grouped_why_not,
    groups_why_not,
    size_misfit,
)
from spbench.workload.block import Attention, Sublayer
from spbench.workload.fields import DTYPE_BYTES
from spbench.workload.mesh import Mesh
from spbench.workload.sharding import Shard, Sizes
from spbench.workload.traffic import Traffic, Transfer, along_held
from spbench.workload.workload import Workload


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class GridPlan(BalancedPlan):
    """Gathers in rows and columns of ranks, and the partial results back along the row."""

    strategy: Attention2D

    @property
    def queries_stay(self) -> bool:
        return True

    @property
    def rows(self) -> str:
        return self.strategy.rows

    @cached_property
    def mesh(self) -> Mesh:
        return Mesh.of({"rows": int(self.rows), "columns": self.ranks // int(self.rows)})

    def pairs(self, attention: Attention, rank: int) -> int:
        if (shown := self.shown(attention)) is None:
            return 0
        mask, held = shown
        queries, keys = (
            tuple(run for each in self.mesh.members(rank, axis) for run in held[each])
            for axis in ("columns", "rows")
        )
        return sum(tile.pairs for tile in mask.tiles(queries, keys))

    def sublayer_traffic(self, sublayer: Sublayer, axis: str) -> Traffic:
        if not isinstance(sublayer, Attention) or axis not in sublayer.attended:
            return super().sublayer_traffic(sublayer, axis)
        work, held = self.workload, self.held(axis)
        total = sum(held)
        wider = max(1, 4 // DTYPE_BYTES[work.dtype])  # log-sum-exps have 4 bytes at least
        # Of D numbers of a query and head there is one: bytes / D, in 4 bytes at least: 2 x in 16
        # bits.
        lse_bytes = wider * work.query_bytes // work.head_size  # one number a query and head

        def in_row(sizes: Sizes) -> Traffic:
            whole = work.query_bytes, work.result_bytes, lse_bytes
            M, results, lse = (n * sum(sizes) // total for n in whole)
            # A rank has the partial results of all queries of its row, and returns each its own.
            apart = (1,) * len(sizes)
            parts = [Transfer.all_to_all(n * len(sizes), apart, sizes) for n in (results, lse)]
            # Queries, results and their gradients, and the log-sum-exps.
            again = [Transfer.all_gather(n, sizes) for n in (M + 2 * results, lse)]
            gather, scatter = Transfer.all_gather(M, sizes), Transfer.reduce_scatter(M, sizes)
            return [gather, *parts], [*again, scatter]

        def in_column(sizes: Sizes) -> Traffic:
            both = work.key_value_bytes * sum(sizes) // total
            gather = Transfer.all_gather(both, sizes)
            return [gather], [gather, Transfer.reduce_scatter(both, sizes)]

        # The ranks of a column are those of different rows.
        keys, keys_back = along_held("rows", self.mesh, held, in_column)
        queries, queries_back = along_held("columns", self.mesh, held, in_row)
        return keys + queries, keys_back + queries_back

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, scores: Scores, shard: Shard, comm: Collectives
    ) -> Tensor:
        if shard.dim not in scores.dims or comm.size == 1:
            return super().attend(q, k, v, scores, shard, comm)
        return applied(_TwoWays, q, k, v, scores.sinks, scores, shard, comm)


@final
@dataclass(frozen=True, kw_only=True)
class Attention2D(BalancedAxis):
    """With ``rows`` of ranks, by default for the fewest bytes: the fewer key heads there are, the
    more rows; of equals as square as can be."""

    forms: ClassVar[tuple[str, ...]] = ("rows=2", "balance=work")
    plan: ClassVar[type[GridPlan]] = GridPlan
    rows: str = AUTO

    def misfit(self, workload: Workload) -> str | None:
        return size_misfit(rows=self.rows) or super().misfit(workload)

    def why_not(self, workload: Workload, ranks: int) -> str | None:
        return groups_why_not(ranks, rows=self.rows) or super().why_not(workload, ranks)

    def why_not_along(self, axis: str, workload: Workload, ranks: int) -> str | None:
        unfit = grouped_why_not(axis, workload) or blocks_why_not(axis, workload)
        return super().why_not_along(axis, workload, ranks) or unfit

    def alternatives(self, workload: Workload, ranks: int) -> Sequence[FixedPlan]:
        """Each number of rows that divides the ranks."""
        if self.rows != AUTO:
            return self.on_each_axis(workload, ranks)
        return [self._with(rows).on(workload, ranks) for rows in divisors(ranks)]

    def on(self, workload: Workload, ranks: int) -> FixedPlan:
        """More rows gather more keys and fewer queries, so that bytes fall and then rise with them:
        from the squarest grid on, rows are more or fewer as long as that sends less."""
        if self.rows != AUTO:
            return self.on_cheapest_axis(workload, ranks)
        sizes = divisors(ranks)

        @cache
        def plan(i: int) -> FixedPlan:
            return self._with(sizes[i]).on(workload, ranks)

        # The largest divisor up to the root: of 1 2 3 4 6 12 it is 3 for 12 ranks.
        best = bisect_right(sizes, isqrt(ranks)) - 1
        for step in (1, -1):
            while (
                0 <= best + step < len(sizes)
                and plan(best + step).waited_bytes < plan(best).waited_bytes
            ):
                best += step
        return plan(best)

    def _with(self, rows: int) -> Attention2D:
        return replace(self, rows=str(rows))


class _TwoWays(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, *how: Any) -> Tensor:
        sinks, scores, shard, comm = how
        folding = Folding.of(q.shape, scores.dims)
        mine, sizes = pack(folding.fold(k), folding.fold(v)), widths(k, v)
        positions = folded_shard(shard, len(mine), comm.rank)
        held = () if scores.mask is None else scores.held(q.shape, shard)
        grid = AttentionGrid(comm, positions, scores.causal, held, scores.mask)
        keys = grid.in_column.start_all_gather(mine, grid.keys)
        queries = grid.in_row.start_all_gather(folding.fold(q).movedim(2, 0), grid.queries)
        # Both gathers are under way, in groups of their own; the first product needs both.
        part = grid.attend(queries.wait().movedim(0, 2), *unpack(keys.wait(), sizes))
        total = with_sinks(grid.merged(Part(part.out.to(q.dtype), part.lse)), sinks)
        out = put_outermost(folding.unfold(total.out), shard.dim, q.dtype)
        ctx.save_for_backward(q, mine, out, total.lse, sinks)
        ctx.how = folding, grid, sizes
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        q, mine, out, lse, sinks = ctx.saved_tensors
        folding, grid, sizes = ctx.how
        # Gradient, queries and results in one message, (S, 3, b, Z, D).
        of_rows = [folding.fold(x) for x in (grad, q, out)]
        own = pack(*of_rows)
        rows = grid.in_row.start_all_gather(own, grid.queries)
        sums = grid.in_row.start_all_gather(lse.movedim(2, 0), grid.queries)
        keys = grid.in_column.start_all_gather(mine, grid.keys)
        d_out, queries, outs = unpack(rows.wait(), widths(grad, q, out))
        given = d_out, queries, outs, sums.wait().movedim(0, 2), *unpack(keys.wait(), sizes)
        d_q, d_k, d_v = (gradient.to(q.dtype) for gradient in grid.gradients(*given))
        d_rows = grid.in_row.start_reduce_scatter(d_q.movedim(2, 0), grid.queries)
        d_keys = grid.in_column.start_reduce_scatter(pack(d_k, d_v), grid.keys)
        d_mine = [d_rows.wait().movedim(0, 2), *unpack(d_keys.wait(), sizes)]
        d_sinks = gradient_of_sinks(of_rows[0], of_rows[2], lse, sinks)
        return *map(folding.unfold, d_mine), d_sinks, None, None, None
