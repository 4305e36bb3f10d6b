"""One attention and nothing else, as published attention-level figures have it.

The input's channels are q, k and v end to end, the output's are the heads' results: no norm, no
residual, no projections.
"""

from typing import final

from torch import Tensor, nn

from spbench.comm.collectives import Collectives
from spbench.layers.memory_order import split_in_memory_order
from spbench.model.inputs import Inputs
from spbench.model.self_attention import Attending, Heads, Shared
from spbench.model.transformer import Transformer
from spbench.strategies.base import Plan
from spbench.workload.block import Attention
from spbench.workload.sharding import Shard


@final
class AttentionAlone(Attending):
    """Attention of q, k and v that are the channels of its input."""

    def __init__(self, attention: Attention, shared: Shared) -> None:
        super().__init__(attention, shared)
        workload = shared.workload
        self.head_dim, keys = workload.head_size, workload.key_heads * workload.head_size
        self.widths = (workload.attention_width, keys, keys)

    def into(self, x: Tensor, shard: Shard) -> tuple[Heads, None]:
        parts = split_in_memory_order(x, self.widths, -1)
        q, k, v = (each.unflatten(-1, (-1, self.head_dim)) for each in parts)
        return (q, k, v), None

    def out_of(self, attended: Tensor, beside: None, shard: Shard) -> Tensor:
        return attended.flatten(-2)


@final
class AttentionModel(nn.Module):
    """(B, *axes, (Z + 2 Zkv) D) -> (B, *axes, Z D), both sharded as the strategy has it."""

    def __init__(self, plan: Plan, comm: Collectives) -> None:
        super().__init__()
        (attention,), (axis,) = plan.workload.attentions, plan.layout
        shared = Shared(plan, comm)
        self.first = self.last = plan.shards[axis]
        self.text = plan.text
        self.pairs = shared.pairs
        self.condition_cuts: list[Shard | None] = [None]
        self.attention = AttentionAlone(attention, shared)

    def forward(self, inputs: Inputs) -> Tensor:
        return self.attention(inputs.x, inputs, self.first)


def model_of(plan: Plan, comm: Collectives) -> Transformer | AttentionModel:
    """What a workload describes: a transformer, or one attention."""
    kind = AttentionModel if plan.workload.is_attention_alone else Transformer
    return kind(plan, comm)
