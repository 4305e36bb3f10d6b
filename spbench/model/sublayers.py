"""The sublayers: self-attention, cross-attention, mlp. Each meets the strategy at its seams.

    x (B, *axes, H)  ->  linear_in  ->  attend or gelu  ->  linear_out  ->  (B, *axes, H)

What lies between the projections may be whole or cut; only the strategy knows.
"""

from __future__ import annotations

from typing import final

import torch.nn.functional as F
from torch import Tensor, nn

from spbench.comm.collectives import Collectives
from spbench.strategies.base import Strategy
from spbench.strategies.kernel import attend_context
from spbench.strategies.linear import LinearSpec
from spbench.workload.shards import Shard
from spbench.workload.sublayers import Attention, CrossAttention, Mlp, Sublayer
from spbench.workload.workload import Workload


@final
class SelfAttention(nn.Module):
    """Attention along one axis; the others are batch."""

    def __init__(
        self, sublayer: Attention, workload: Workload, strategy: Strategy, comm: Collectives
    ) -> None:
        super().__init__()
        self.strategy, self.comm = strategy, comm
        self.along = workload.dim(sublayer.axes[0])
        hidden, heads = workload.hidden, (workload.heads, workload.head_dim)
        self.qkv = strategy.linear_in(
            LinearSpec(in_shape=(hidden,), out_shape=(3, *heads), cut=1), comm
        )
        self.out = strategy.linear_out(LinearSpec(in_shape=heads, out_shape=(hidden,), cut=0), comm)

    def forward(self, x: Tensor, context: Tensor, shard: Shard) -> Tensor:
        q, k, v = self.qkv(x, shard).unbind(-3)
        attended = self.strategy.attend(q, k, v, self.along, shard, self.comm)
        out: Tensor = self.out(attended, shard)
        return out


@final
class ContextAttention(nn.Module):
    """Attention to a context that every rank holds whole: local under any shard."""

    def __init__(
        self, sublayer: CrossAttention, workload: Workload, strategy: Strategy, comm: Collectives
    ) -> None:
        super().__init__()
        self.length = sublayer.length
        hidden, heads = workload.hidden, (workload.heads, workload.head_dim)
        self.q = strategy.linear_in(LinearSpec(in_shape=(hidden,), out_shape=heads, cut=0), comm)
        self.kv = strategy.linear_in(
            LinearSpec(in_shape=(hidden,), out_shape=(2, *heads), cut=1), comm
        )
        self.out = strategy.linear_out(LinearSpec(in_shape=heads, out_shape=(hidden,), cut=0), comm)

    def forward(self, x: Tensor, context: Tensor, shard: Shard) -> Tensor:
        k, v = self.kv(context[:, : self.length], None).unbind(-3)
        out: Tensor = self.out(attend_context(self.q(x, shard), k, v), shard)
        return out


@final
class GeluMlp(nn.Module):
    """Two projections with gelu between them."""

    def __init__(
        self, sublayer: Mlp, workload: Workload, strategy: Strategy, comm: Collectives
    ) -> None:
        super().__init__()
        hidden, columns = workload.hidden, workload.columns(sublayer)
        self.up = strategy.linear_in(
            LinearSpec(in_shape=(hidden,), out_shape=(columns,), cut=0), comm
        )
        self.down = strategy.linear_out(
            LinearSpec(in_shape=(columns,), out_shape=(hidden,), cut=0), comm
        )

    def forward(self, x: Tensor, context: Tensor, shard: Shard) -> Tensor:
        out: Tensor = self.down(F.gelu(self.up(x, shard), approximate="tanh"), shard)
        return out


def make(
    sublayer: Sublayer, workload: Workload, strategy: Strategy, comm: Collectives
) -> SelfAttention | ContextAttention | GeluMlp:
    match sublayer:
        case Attention():
            return SelfAttention(sublayer, workload, strategy, comm)
        case CrossAttention():
            return ContextAttention(sublayer, workload, strategy, comm)
        case Mlp():
            return GeluMlp(sublayer, workload, strategy, comm)
