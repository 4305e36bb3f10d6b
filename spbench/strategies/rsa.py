"""Ring Self-Attention (Li et al., ACL 2023): two rings, one full row of scores.

One axis stays sharded. To attend along it every rank passes its keys once round the ring and
computes its row of scores, takes one softmax over the full row, then passes its values round.

    scores_r = q_r [k_0 k_1 ...]      a ring of K     f K sent
    out_r = p_r [v_0 v_1 ...]         a ring of V     f K

Backward rings V (for the gradient of the scores) and K (for that of q), and sums every rank's
part of the whole dK and dV: as published by two all-reduces, 6 f K in all (section 3.2), or
with ``reduce_scatter`` 4 f K. The row costs B Z S^2 / N elements. Under a causal mask shards
are zigzag, and what is masked is not computed (``layers/rsa_rows.py``).

A block is under way while the scores of the one at hand are computed; V's come under the softmax.
In backward each comes under a part of the sum, of dV or dK, that does not need it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from spbench.comm.collectives import Collectives
from spbench.comm.compiler import applied
from spbench.comm.pending import Pending
from spbench.layers.attention import Scores, attend_projected, projected_traffic
from spbench.layers.memory_order import put_outermost
from spbench.layers.rsa_rows import Rows, softmax_, softmax_backward_
from spbench.strategies.fixed_axis import FixedAxis, FixedPlan
from spbench.strategies.refusals import banded_why_not
from spbench.workload.block import Attention, Sublayer
from spbench.workload.sharding import Shard
from spbench.workload.traffic import Traffic, Transfer
from spbench.workload.workload import Workload


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class RingPlan(FixedPlan):
    """Two rings forward, two back, and the sums of dK and dV."""

    strategy: RingSelfAttention
    zigzag: ClassVar[bool] = True

    def sublayer_traffic(self, sublayer: Sublayer, axis: str) -> Traffic:
        if not isinstance(sublayer, Attention) or axis not in sublayer.attended:
            return super().sublayer_traffic(sublayer, axis)
        if sublayer.projection:
            return projected_traffic(sublayer, self.workload, self.ranks)
        of_each, sizes = (self.workload.key_bytes, self.workload.value_bytes), self.held(axis)
        rings = [Transfer.ring(whole, sizes) for whole in of_each]
        sums = [
            Transfer.reduce_scatter(whole, sizes)
            if self.strategy.reduce_scatter
            else Transfer.all_reduce(whole, self.ranks)
            for whole in of_each
        ]
        return rings, [*rings, *sums]

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, scores: Scores, shard: Shard, comm: Collectives
    ) -> Tensor:
        if shard.dim not in scores.dims or comm.size == 1:
            return super().attend(q, k, v, scores, shard, comm)
        if scores.projection is not None:
            return attend_projected(q, k, v, scores, shard, comm)
        how = scores, shard, comm, self.strategy.reduce_scatter
        return applied(_Rings, q, k, v, scores.bias, *how)


@final
@dataclass(frozen=True, kw_only=True)
class RingSelfAttention(FixedAxis):
    """With ``reduce_scatter`` it sums dK and dV so that each rank gets only its own part."""

    forms: ClassVar[tuple[str, ...]] = ("reduce-scatter",)
    keeps_scores: ClassVar[bool] = True
    plan: ClassVar[type[RingPlan]] = RingPlan
    reduce_scatter: bool = False

    def why_not_along(self, axis: str, workload: Workload, ranks: int) -> str | None:
        unfit = banded_why_not(axis, workload)
        return super().why_not_along(axis, workload, ranks) or unfit


class _Rings(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, *how: Any) -> Tensor:
        bias, scores_of, shard, comm, ctx.scatter = how
        rows = Rows(q, k, scores_of, shard, comm.rank)
        # Scaled queries: D^-1/2 on (b, s, D) and not on (b, s, S), which is larger.
        scaled, keys = rows.fold(q * q.shape[-1] ** -0.5), rows.fold_keys(k)
        scores = _scores(scaled, keys, rows, comm)
        values = rows.fold_keys(v)
        ring = comm.start_ring(values, rows.keys)
        rows.mask_(scores)
        if bias is not None:
            rows.add_bias_(scores, bias)
        weights = softmax_(scores, ring)
        ctx.save_for_backward(scaled, keys, values, weights)
        ctx.rows, ctx.comm, ctx.biased = rows, comm, bias is not None
        out = rows.unfold(rows.times_keys(weights, ring.wait()))
        return put_outermost(out, rows.shard.dim).flatten(-3, -2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        scaled, keys, values, weights = ctx.saved_tensors
        rows, comm = ctx.rows, ctx.comm
        # Each ring comes under the product that has nothing to do with what it brings, and each sum
        # goes under the one behind. Of the whole K, V, dK and dV, two are there at a time.
        d_v, d_scores = _backward_of_values(
            rows.fold(grad), values, weights, rows, comm, ctx.scatter
        )
        ring = comm.start_ring(keys, rows.keys)
        sums = [rows.turned_product(scaled, d_scores, ring)]
        whole_keys = ring.wait()
        # Handed over: a transfer holds what it needs, which may be a copy.
        d_k = _start_sum(sums.pop(), rows, comm, ctx.scatter)
        d_q = rows.times_keys(d_scores, whole_keys).mul_(scaled.shape[-1] ** -0.5)
        d_bias = rows.bias_gradient(d_scores) if ctx.biased else None
        d_keys = (rows.unfold_keys(d_part) for d_part in (d_k.wait(), d_v))
        return rows.unfold(d_q).flatten(-3, -2), *d_keys, d_bias, *(None,) * 4


def _scores(scaled: Tensor, keys: Tensor, rows: Rows, comm: Collectives) -> Tensor:
    """The products with all keys, which are let go again."""
    ring = comm.start_ring(keys, rows.keys)
    tiles = rows.tiles_as_they_come(ring)
    return rows.product(scaled, ring.whole, hidden=-torch.inf, tiles=tiles)


def _backward_of_values(
    d_out: Tensor, values: Tensor, weights: Tensor, rows: Rows, comm: Collectives, scatter: bool
) -> tuple[Tensor, Tensor]:
    """The gradient of this rank's values, and that of the scores, which is written over
    ``weights``."""
    ring = comm.start_ring(values, rows.keys)
    sums = [rows.turned_product(d_out, weights, ring)]
    whole_values = ring.wait()
    d_v = _start_sum(sums.pop(), rows, comm, scatter)
    d_scores = _d_scores_(weights, d_out, whole_values, rows)
    own = d_v.wait()
    # As a view it would keep the whole sum, N times as large, until backward is over.
    return own if scatter else own.clone(), d_scores


def _d_scores_(weights: Tensor, d_out: Tensor, values: Tensor, rows: Rows) -> Tensor:
    """The gradient of the scores, in the memory of ``weights``."""
    return softmax_backward_(
        weights, lambda part: rows.product(d_out[part], values[:, part], hidden=0.0)
    )


def _start_sum(partial: Tensor, rows: Rows, comm: Collectives, scatter: bool) -> Pending[Tensor]:
    """Starts to sum a gradient of all keys or values, (b, D, S); gives this rank's part of it."""
    if scatter:
        partial = partial.permute(2, 0, 1).contiguous()  # as messages want it; the other goes
        return comm.start_reduce_scatter(partial, rows.keys)
    # All-reduced as published: of the sum over all keys a rank needs its own alone.
    mine = partial.permute(2, 0, 1).narrow(
        0, rows.keys.offset(comm.rank), rows.keys.sizes[comm.rank]
    )
    return Pending(comm.all_reduce_(partial), mine)
