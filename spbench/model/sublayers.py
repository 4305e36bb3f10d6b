"""The sublayers: self-attention, cross-attention, mlp; each calls the strategy at its seams.

    x (B, *axes, H)  ->  linear_in  ->  attend or activation  ->  linear_out  ->  (B, *axes, H)

Between the projections the axes may be whole or cut; only the strategy knows which.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spbench.comm.collectives import Collectives
from spbench.layers.attention import Scores
from spbench.layers.cross_attention import cross_attend
from spbench.layers.linear import LinearSpec
from spbench.layers.memory_order import split_in_memory_order
from spbench.layers.pair_bias import PairBias
from spbench.layers.query_key_norm import AcrossHeadsNorm, EachHeadNorm
from spbench.model.inputs import Inputs
from spbench.model.positions import Rotary, RotaryTables
from spbench.strategies.base import Strategy
from spbench.workload.block import Attention, CrossAttention, Mlp, Sublayer
from spbench.workload.fields import ACROSS_HEADS
from spbench.workload.sharding import Shard
from spbench.workload.workload import Workload


@final
@dataclass(frozen=True, kw_only=True)
class Shared:
    """The rotary tables and pair shards that all self-attentions of a model use."""

    tables: RotaryTables
    pairs: dict[str, Shard]
    """How the pair tensor of each axis is cut."""


@final
class SelfAttention(nn.Module):
    """Attention along one axis or several joined; the others are batch."""

    def __init__(
        self,
        sublayer: Attention,
        workload: Workload,
        strategy: Strategy,
        comm: Collectives,
        shared: Shared,
    ) -> None:
        super().__init__()
        self.strategy, self.comm = strategy, comm
        self.dims, self.causal = workload.dims(sublayer), sublayer.causal
        hidden, head_dim, units = workload.hidden, workload.head_size, workload.key_heads
        self.group = group = workload.heads // units
        width = (group + 2) * units
        heads_in = LinearSpec(
            in_shape=(hidden,), out_shape=(width, head_dim), units=units, widths=(group, 1, 1)
        )
        heads = (workload.heads, head_dim)
        heads_out = LinearSpec(in_shape=heads, out_shape=(hidden,), units=units, widths=(group,))
        self.qkv = strategy.linear_in(heads_in, comm)
        self.out = strategy.linear_out(heads_out, comm)
        self.norm: EachHeadNorm | AcrossHeadsNorm | None = None
        if workload.qk_norm == ACROSS_HEADS:
            self.norm = AcrossHeadsNorm(workload, comm, is_cut=strategy.cuts_weights)
        elif workload.qk_norm:
            self.norm = EachHeadNorm(head_dim)
        self.rotary = Rotary(sublayer, workload, shared.tables, comm)
        self.projection: nn.Parameter | None = None
        if sublayer.projection:
            lengths = [workload.axes[axis] for axis in workload.axes if axis in sublayer.axes]
            self.projection = nn.Parameter(torch.empty(2, sublayer.projection, *lengths))
        self.bias: PairBias | None = None
        if sublayer.pair_bias:
            self.bias = PairBias(sublayer.pair_bias, workload.heads)
            self.bias_axis = sublayer.axes[0]
            self.bias_shard = shared.pairs[self.bias_axis]

    def forward(self, x: Tensor, inputs: Inputs, shard: Shard) -> Tensor:
        qkv = self.qkv(x, shard)
        keys = qkv.shape[-2] // (self.group + 2)
        q, k, v = split_in_memory_order(qkv, (self.group * keys, keys, keys), -2, features=2)
        if self.norm is not None:
            q, k = self.norm(q, k)
        q, k = self.rotary(q, k, self.strategy.inside(shard))
        scores = Scores(
            dims=self.dims,
            causal=self.causal,
            projection=self.projection,
            bias=None if self.bias is None else self.bias(inputs.pairs[self.bias_axis]),
            bias_shard=None if self.bias is None else self.bias_shard,
        )
        attended = self.strategy.attend(q, k, v, scores, shard, self.comm)
        out: Tensor = self.out(attended, shard)
        return out


@final
class CrossAttentionModule(nn.Module):
    """Attention to text tokens that every rank holds whole: local under any shard."""

    def __init__(
        self, sublayer: CrossAttention, workload: Workload, strategy: Strategy, comm: Collectives
    ) -> None:
        super().__init__()
        self.length = sublayer.length
        hidden, (heads, head_dim) = workload.hidden, workload.cross_heads(sublayer)
        queries = LinearSpec(in_shape=(hidden,), out_shape=(heads, head_dim), units=heads)
        keys_values = LinearSpec(
            in_shape=(hidden,), out_shape=(2 * heads, head_dim), units=heads, widths=(1, 1)
        )
        back = LinearSpec(in_shape=(heads, head_dim), out_shape=(hidden,), units=heads)
        self.q = strategy.linear_in(queries, comm)
        self.kv = strategy.linear_in(keys_values, comm)
        self.out = strategy.linear_out(back, comm)

    def forward(self, x: Tensor, inputs: Inputs, shard: Shard) -> Tensor:
        k, v = self.kv(inputs.text[:, : self.length], None).chunk(2, -2)
        out: Tensor = self.out(cross_attend(self.q(x, shard), k, v), shard)
        return out


@final
class FeedForward(nn.Module):
    """Two projections with gelu between them, or with a gated silu (swiglu)."""

    def __init__(
        self, sublayer: Mlp, workload: Workload, strategy: Strategy, comm: Collectives
    ) -> None:
        super().__init__()
        hidden, columns = workload.hidden, workload.columns(sublayer)
        self.gated = sublayer.activation == "swiglu"
        widths = (1, 1) if self.gated else (1,)
        wide = (len(widths) * columns,)
        up = LinearSpec(in_shape=(hidden,), out_shape=wide, units=columns, widths=widths)
        down = LinearSpec(in_shape=(columns,), out_shape=(hidden,), units=columns)
        self.up, self.down = strategy.linear_in(up, comm), strategy.linear_out(down, comm)

    def forward(self, x: Tensor, inputs: Inputs, shard: Shard) -> Tensor:
        wide = self.up(x, shard)
        if self.gated:
            gate, value = split_in_memory_order(wide, (wide.shape[-1] // 2,) * 2, -1)
            active = F.silu(gate) * value
        else:
            active = F.gelu(wide, approximate="tanh")
        out: Tensor = self.down(active, shard)
        return out


def make(
    sublayer: Sublayer, workload: Workload, strategy: Strategy, comm: Collectives, shared: Shared
) -> SelfAttention | CrossAttentionModule | FeedForward:
    match sublayer:
        case Attention():
            return SelfAttention(sublayer, workload, strategy, comm, shared)
        case CrossAttention():
            return CrossAttentionModule(sublayer, workload, strategy, comm)
        case Mlp():
            return FeedForward(sublayer, workload, strategy, comm)
