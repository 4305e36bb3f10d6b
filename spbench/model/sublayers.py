"""The sublayers as modules: self-attention (``self_attention.py``), cross-attention, mlp.

x (B, *axes, H)  ->  linear_in  ->  attend or activation  ->  linear_out  ->  (B, *axes, H)
"""

from typing import final

from torch import Tensor, nn

from spbench.layers.cross_attention import cross_attend
from spbench.layers.linear import LinearSpec, Stretch
from spbench.model.inputs import Inputs
from spbench.model.self_attention import AttentionBesideMlp, SelfAttention, Shared, activated
from spbench.workload.block import Attention, CrossAttention, Mlp, Sublayer
from spbench.workload.sharding import Shard


@final
class CrossAttentionModule(nn.Module):
    """Attention to tokens of a context that every rank holds whole: local under any shard."""

    def __init__(self, sublayer: CrossAttention, shared: Shared) -> None:
        super().__init__()
        workload, plan, comm = shared.workload, shared.plan, shared.comm
        self.length = sublayer.length
        hidden, (heads, head_dim) = workload.hidden, workload.cross_heads(sublayer)
        each = Stretch(heads)
        queries = LinearSpec(in_shape=(hidden,), out_shape=(heads, head_dim), stretches=(each,))
        keys_values = LinearSpec(
            in_shape=(hidden,), out_shape=(2 * heads, head_dim), stretches=(each, each)
        )
        back = LinearSpec(in_shape=(heads, head_dim), out_shape=(hidden,), stretches=(each,))
        self.q = plan.linear_in(queries, comm)
        self.kv = plan.linear_in(keys_values, comm)
        self.out = plan.linear_out(back, comm)

    def forward(self, x: Tensor, inputs: Inputs, shard: Shard) -> Tensor:
        k, v = self.kv(inputs.context[:, : self.length], None).chunk(2, -2)
        return self.out(cross_attend(self.q(x, shard), k, v), shard)


@final
class FeedForward(nn.Module):
    """Two projections with gelu between them, or with a gated silu (swiglu)."""

    def __init__(self, sublayer: Mlp, shared: Shared) -> None:
        super().__init__()
        workload, plan, comm = shared.workload, shared.plan, shared.comm
        hidden, columns = workload.hidden, workload.columns(sublayer)
        self.ways, each = sublayer.ways_in, Stretch(columns)
        wide = (self.ways * columns,)
        up = LinearSpec(in_shape=(hidden,), out_shape=wide, stretches=(each,) * self.ways)
        down = LinearSpec(in_shape=(columns,), out_shape=(hidden,), stretches=(each,))
        self.up, self.down = plan.linear_in(up, comm), plan.linear_out(down, comm)

    def forward(self, x: Tensor, inputs: Inputs, shard: Shard) -> Tensor:
        wide = self.up(x, shard)
        return self.down(activated(wide, [wide.shape[-1] // self.ways] * self.ways), shard)


def make(sublayer: Sublayer, shared: Shared) -> nn.Module:
    match sublayer:
        case Attention(beside=None):
            return SelfAttention(sublayer, shared)
        case Attention():
            return AttentionBesideMlp(sublayer, shared)
        case CrossAttention():
            return CrossAttentionModule(sublayer, shared)
        case Mlp():
            return FeedForward(sublayer, shared)
