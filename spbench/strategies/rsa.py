"""Ring Self-Attention (Li et al., ACL 2023): two rings, one full row of scores.

One axis stays sharded. To attend along it every rank passes its keys once round the ring and
fills its row of scores, takes one softmax over the full row, then passes its values round.

    scores_r[:, j] = q_r k_j      a ring of K     f M sent
    out_r = sum_j p_r[:, j] v_j   a ring of V     f M

Backward rings V (for the gradient of the scores) and K (for that of q), and sums over the
ranks every rank's part of the whole dK and dV: as published by two all-reduces, 6 f M in all
(section 3.2), or with ``reduce_scatter`` 4 f M. The row costs B Z S^2 / N elements.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from spbench.comm.collectives import Collectives, Pending
from spbench.comm.transfer import Transfer
from spbench.strategies.base import Traffic
from spbench.strategies.embedded import Embedded
from spbench.strategies.kernel import attend_whole, fold, unfold
from spbench.workload.shards import Shard, shard_sizes
from spbench.workload.sublayers import Attention, Sublayer
from spbench.workload.workload import Workload


@final
@dataclass(frozen=True, kw_only=True)
class RingSelfAttention(Embedded):
    """``reduce_scatter`` sums dK and dV without handing every rank the whole of them."""

    reduce_scatter: bool = False

    def sublayer_traffic(
        self, sublayer: Sublayer, workload: Workload, axis: str, ranks: int
    ) -> Traffic:
        if not isinstance(sublayer, Attention) or axis not in sublayer.attended:
            return [], []
        M, sizes = workload.activation_bytes, shard_sizes(workload.axes[axis], ranks)
        ring = Transfer.ring(M, sizes)
        summed = Transfer.all_reduce(M, ranks)
        if self.reduce_scatter:
            summed = Transfer.reduce_scatter(M, sizes)
        return [ring, ring], [ring, ring, summed, summed]

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, along: int, shard: Shard, comm: Collectives
    ) -> Tensor:
        if along != shard.dim:
            return attend_whole(q, k, v, along)
        out: Tensor = _Rings.apply(q, k, v, shard, comm, self.reduce_scatter)
        return out


class _Rings(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, shard: Shard, comm: Collectives, scatter: bool
    ) -> Tensor:
        scaled = fold(q, shard.dim) * q.shape[-1] ** -0.5
        scores = _row(scaled, k, shard, comm)
        weights = torch.softmax(scores, -1)
        ctx.save_for_backward(scaled, k, v, weights)
        ctx.shard, ctx.comm, ctx.scatter = shard, comm, scatter
        return unfold(_row_times(weights, v, shard, comm), q, shard.dim)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        scaled, k, v, weights = ctx.saved_tensors
        shard, comm = ctx.shard, ctx.comm
        d_out = fold(grad, shard.dim)
        d_v = _start_sum(weights.transpose(-2, -1) @ d_out, v, shard, comm, ctx.scatter)
        d_weights = _row(d_out, v, shard, comm)
        d_scores = torch._softmax_backward_data(d_weights, weights, -1, weights.dtype)
        d_k = _start_sum(d_scores.transpose(-2, -1) @ scaled, k, shard, comm, ctx.scatter)
        d_q = _row_times(d_scores, k, shard, comm) * grad.shape[-1] ** -0.5
        return unfold(d_q, grad, shard.dim), d_k.wait(), d_v.wait(), None, None, None


def _row(left: Tensor, ringed: Tensor, shard: Shard, comm: Collectives) -> Tensor:
    """``left`` times every block of ``ringed``, side by side: (b, Z, S/N, S)."""
    row = left.new_empty(*left.shape[:-1], shard.length)
    for owner, block in comm.ring(ringed, shard):
        columns = row.narrow(-1, shard.offset(owner), shard.sizes[owner])
        columns.copy_(left @ fold(block, shard.dim).transpose(-2, -1))
    return row


def _row_times(row: Tensor, ringed: Tensor, shard: Shard, comm: Collectives) -> Tensor:
    """The sum over blocks, added up in float32 at least: (b, Z, S/N, D)."""
    total: Tensor | None = None
    for owner, block in comm.ring(ringed, shard):
        columns = row.narrow(-1, shard.offset(owner), shard.sizes[owner])
        part = (columns @ fold(block, shard.dim)).to(torch.promote_types(row.dtype, torch.float32))
        total = part if total is None else total.add_(part)
    assert total is not None
    return total.to(row.dtype)


def _start_sum(
    whole: Tensor, like: Tensor, shard: Shard, comm: Collectives, scatter: bool
) -> Pending:
    """This rank's part of the sum, over the ranks, of a gradient of the whole axis."""
    partial = unfold(whole, like, shard.dim).contiguous()
    if scatter:
        return comm.start_reduce_scatter(partial, shard)
    return Pending(comm.all_reduce_(partial), comm.take(partial, shard))
