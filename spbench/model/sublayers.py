"""The sublayers as modules, which call the strategy at its seams: attentions and mlp.

    x (B, *axes, H)  ->  linear_in  ->  q, k, v (B, *axes, Z, D)  ->  attend  ->  linear_out

Selective checkpointing (Korthikanti et al., MLSys 2023, section 5) has backward run ``attend`` of
self-attentions again, with all that it exchanges: what lies between q and k, normed and turned, and
the projection out. Its scores and softmax are most of the memory and little of the work.
Cross-attention, of which the paper's model has none, is not run again: to a few tokens of a
context it holds little.

Between the projections the axes may be whole or cut; only the strategy knows which. Text is
projected by the same modules, or by others of the same kind (``streams.py``).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from spbench.comm.collectives import Collectives
from spbench.layers.attention import Scores, cross_attend
from spbench.layers.heads import PairBias
from spbench.layers.linear import AcrossHeadsNorm, EachHeadNorm, LinearSpec, mark_of_heads
from spbench.layers.memory_order import (
    heads_in_memory_order,
    joined_in_memory_order,
    split_in_memory_order,
)
from spbench.model.inputs import Inputs
from spbench.model.positions import Rotary, RotaryTables
from spbench.strategies.base import Plan
from spbench.workload.block import Attention, CrossAttention, Mlp, StreamAttention, Sublayer
from spbench.workload.fields import ACROSS_HEADS, Grid
from spbench.workload.sharding import Shard, Stretch
from spbench.workload.strands import between
from spbench.workload.workload import Workload

Heads = tuple[Tensor, Tensor, Tensor]
"""Queries, keys and values."""


@final
@dataclass(frozen=True)
class Shared:
    """What all sublayers of a model are made for, and tables and shards that they use."""

    plan: Plan
    comm: Collectives

    @property
    def workload(self) -> Workload:
        return self.plan.workload

    @cached_property
    def tables(self) -> RotaryTables:
        return RotaryTables(self.workload)

    @cached_property
    def pairs(self) -> dict[str, Shard]:
        """How the pair tensor of each axis is cut."""
        # (B, S, S, C): rows, which are queries, are cut as the axis is; columns are whole.
        return {axis: self.plan.shards[axis].along(1) for axis in self.workload.pairs}


def recomputed(module: nn.Module) -> Callable[..., Any]:
    """``module``, whose forward runs once more in backward: none of its tensors is kept."""
    # Nothing is random, so there is no state to keep.
    return partial(checkpoint, module, use_reentrant=False, preserve_rng_state=False)


@final
class AttentionCore(nn.Module):
    """What the strategy does with q, k and v: (B, *axes, Z, D) of each -> (B, *axes, Z, D)."""

    def __init__(self, shared: Shared) -> None:
        super().__init__()
        self.plan, self.comm = shared.plan, shared.comm

    def forward(self, q: Tensor, k: Tensor, v: Tensor, scores: Scores, shard: Shard) -> Tensor:
        return self.plan.attend(q, k, v, scores, shard, self.comm)


class Attending(nn.Module, ABC):
    """Attention along one axis or several joined, between projections that a subclass has."""

    def __init__(self, attention: Attention, shared: Shared) -> None:
        super().__init__()
        self.plan, self.comm, workload = shared.plan, shared.comm, shared.workload
        self.core = AttentionCore(shared)
        self.attend = recomputed(self.core) if workload.recomputes_attention else self.core
        self.dims, self.causal = workload.dims(attention), attention.causal
        self.mask = workload.mask(attention)
        self.sinks: nn.Parameter | None = None
        self.norm: EachHeadNorm | AcrossHeadsNorm | None = None
        if workload.qk_norm == ACROSS_HEADS:
            self.norm = AcrossHeadsNorm(workload, self.comm, is_cut=self.plan.cuts_weights)
        elif workload.qk_norm:
            self.norm = EachHeadNorm(workload.head_size)
        self.rotary = Rotary(attention, workload, shared.tables, self.comm)
        if attention.sinks:
            self.sinks = nn.Parameter(torch.empty(workload.heads))
            mark_of_heads(self.sinks)
        self.projection: nn.Parameter | None = None
        self.projected_grids: dict[int, Grid] = {}
        """The dims of ``projection`` that are axes, and which of the model's each is."""
        if attention.projection:
            axes = [axis for axis in workload.axes if axis in attention.axes]
            lengths = [workload.axes[axis] for axis in axes]
            self.projection = nn.Parameter(torch.empty(2, attention.projection, *lengths))
            self.projected_grids = {dim: workload.grid(axis) for dim, axis in enumerate(axes, 2)}
            mark_of_heads(self.projection)
        self.bias: PairBias | None = None
        if attention.pair_bias:
            self.bias = PairBias(attention.pair_bias, workload.heads)
            self.bias_axis = attention.axes[0]
            self.bias_shard = shared.pairs[self.bias_axis]

    @abstractmethod
    def into(self, x: Tensor, shard: Shard) -> tuple[Heads, Any]:
        """q, k and v of (B, *axes, H), and what else comes of it."""

    @abstractmethod
    def out_of(self, attended: Tensor, beside: Any, shard: Shard) -> Tensor:
        """(B, *axes, H) of what attention made of q, k and v, and of what else came ``into``."""

    def normed(self, q: Tensor, k: Tensor, v: Tensor) -> Heads:
        return (q, k, v) if self.norm is None else (*self.norm(q, k), v)

    def turned(self, q: Tensor, k: Tensor, v: Tensor, shard: Shard) -> Heads:
        """With rotary positions."""
        return *self.rotary(q, k, self.plan.inside(shard)), v

    def forward(self, x: Tensor, inputs: Inputs, shard: Shard) -> Tensor:
        """(B, *axes, H) -> (B, *axes, H)."""
        heads, beside = self.into(x, shard)
        q, k, v = self.turned(*self.normed(*heads), shard)
        scores = Scores(
            dims=self.dims,
            causal=self.causal,
            mask=self.mask,
            sinks=self.sinks,
            projection=self.projection,
            bias=None if self.bias is None else self.bias(inputs.pairs[self.bias_axis]),
            bias_shard=None if self.bias is None else self.bias_shard,
        )
        return self.out_of(self.attend(q, k, v, scores, shard), beside, shard)


def widths_of(stretches: Sequence[Stretch], shared: Shared) -> list[int]:
    """Places that this rank has of each stretch of a projection in."""
    # Ranks that cut a weight are neighbours, so that the place in their group is rank % parts.
    # Of an uneven stretch each has another width.
    comm = shared.comm
    parts = comm.mesh.size_of(comm.mesh.last) if shared.plan.cuts_weights else 1
    return [stretch.lengths(parts)[comm.rank % parts] for stretch in stretches]


def sizes_of_heads(workload: Workload) -> tuple[int, int, int]:
    """Numbers of a head of queries, of keys and of values."""
    return workload.head_size, workload.head_size, workload.value_size


@final
class SelfAttention(Attending):
    """One projection to q, k and v of all heads, attention, and the projection out of it."""

    def __init__(self, attention: Attention, shared: Shared) -> None:
        super().__init__(attention, shared)
        workload = shared.workload
        hidden = workload.hidden
        into, self.sizes = workload.qkv_stretches, sizes_of_heads(workload)
        self.widths = widths_of(into, shared)
        self.keys = into[0].length, into[1].length
        """Where the keys of all heads are among all numbers that it projects to."""
        heads_in = LinearSpec(
            in_shape=(hidden,), out_shape=(sum(x.length for x in into),), stretches=into
        )
        heads_out = LinearSpec(
            in_shape=(workload.heads, workload.value_size),
            out_shape=(hidden,),
            stretches=(workload.result_stretch(1),),
        )
        self.qkv = self.plan.linear_in(heads_in, self.comm)
        self.out = self.plan.linear_out(heads_out, self.comm)

    def into(self, x: Tensor, shard: Shard) -> tuple[Heads, None]:
        q, k, v = heads_in_memory_order(self.qkv(x, shard), self.widths, self.sizes)
        return (q, k, v), None

    def out_of(self, attended: Tensor, beside: None, shard: Shard) -> Tensor:
        return self.out(attended, shard)


@final
class AttentionBesideMlp(Attending):
    """Attention and an mlp of the same input: one product into both, and one out of both.

    The columns of the first are q, k, v and the mlp's; what comes out of both goes end to end into
    the second. So a strategy that gathers and scatters around its products does each once.
    """

    def __init__(self, attention: Attention, shared: Shared) -> None:
        super().__init__(attention, shared)
        workload, plan, comm = shared.workload, shared.plan, shared.comm
        assert attention.beside is not None, "an attention alone has no joint projections"
        self.sizes = sizes_of_heads(workload)
        columns = Stretch(workload.columns(attention.beside))
        ways = (columns,) * attention.beside.ways_in
        results = workload.result_stretch(workload.value_size)
        into, out = (*workload.qkv_stretches, *ways), (results, columns)
        hidden, (wide, narrow) = workload.hidden, (sum(x.length for x in xs) for xs in (into, out))
        joint_in = LinearSpec(in_shape=(hidden,), out_shape=(wide,), stretches=into)
        joint_out = LinearSpec(in_shape=(narrow,), out_shape=(hidden,), stretches=out)
        self.qkv_up = plan.linear_in(joint_in, comm)
        self.out_down = plan.linear_out(joint_out, comm)
        self.widths = widths_of(into, shared)

    def into(self, x: Tensor, shard: Shard) -> tuple[Heads, Tensor]:
        # The ways into the mlp, one or two, stay together here: ``activated`` parts them.
        *qkv, up = split_in_memory_order(
            self.qkv_up(x, shard), [*self.widths[:3], sum(self.widths[3:])], -1
        )
        q, k, v = (x.unflatten(-1, (-1, n)) for x, n in zip(qkv, self.sizes, strict=True))
        return (q, k, v), up

    def out_of(self, attended: Tensor, beside: Tensor, shard: Shard) -> Tensor:
        active = activated(beside, self.widths[3:])
        joint = joined_in_memory_order([attended.flatten(-2), active])
        return self.out_down(joint, shard)


def activated(wide: Tensor, ways: Sequence[int]) -> Tensor:
    """Gelu, or where two ways go into an mlp, the silu of the first times the second (swiglu)."""
    if len(ways) == 1:
        return F.gelu(wide, approximate="tanh")
    gate, value = split_in_memory_order(wide, ways, -1)
    return F.silu(gate) * value


@final
class CrossAttentionModule(nn.Module):
    """Attention to tokens of a context that every rank holds whole: local under any shard."""

    def __init__(self, sublayer: CrossAttention, shared: Shared) -> None:
        super().__init__()
        workload, plan, comm = shared.workload, shared.plan, shared.comm
        self.length = sublayer.length
        hidden, (heads, head_dim) = workload.hidden, workload.cross_heads(sublayer)
        of_heads = Stretch(heads)
        queries = LinearSpec(in_shape=(hidden,), out_shape=(heads, head_dim), stretches=(of_heads,))
        keys_values = LinearSpec(
            in_shape=(hidden,), out_shape=(2 * heads, head_dim), stretches=(of_heads, of_heads)
        )
        back = LinearSpec(in_shape=(heads, head_dim), out_shape=(hidden,), stretches=(of_heads,))
        self.q = plan.linear_in(queries, comm)
        self.kv = plan.linear_in(keys_values, comm)
        self.out = plan.linear_out(back, comm)

    def forward(self, x: Tensor, inputs: Inputs, shard: Shard) -> Tensor:
        # The context is whole on every rank: it has no shard. Heads of keys come first.
        k, v = self.kv(inputs.context[:, : self.length], None).chunk(2, -2)
        return self.out(cross_attend(self.q(x, shard), k, v), shard)


@final
class FeedForward(nn.Module):
    """Two projections with gelu between them, or with a gated silu (swiglu)."""

    def __init__(self, sublayer: Mlp, shared: Shared) -> None:
        super().__init__()
        workload, plan, comm = shared.workload, shared.plan, shared.comm
        hidden, columns = workload.hidden, workload.columns(sublayer)
        self.ways, one_way = sublayer.ways_in, Stretch(columns)
        wide = (self.ways * columns,)
        up = LinearSpec(in_shape=(hidden,), out_shape=wide, stretches=(one_way,) * self.ways)
        down = LinearSpec(in_shape=(columns,), out_shape=(hidden,), stretches=(one_way,))
        self.up, self.down = plan.linear_in(up, comm), plan.linear_out(down, comm)

    def forward(self, x: Tensor, inputs: Inputs, shard: Shard) -> Tensor:
        wide = self.up(x, shard)
        return self.down(activated(wide, [wide.shape[-1] // self.ways] * self.ways), shard)


@final
class BetweenStrands(nn.Module):
    """Attention of every token of one strand to every token of another, both cut.

    (B, S, H) of the one that asks, (B, S', H') of the other -> (B, S, H), each (S outermost in
    memory) as one axis of tokens, however many axes it has.
    """

    def __init__(self, sublayer: StreamAttention, plan: Plan, comm: Collectives) -> None:
        """``plan``: that of the model, which has one for the attention."""
        super().__init__()
        one, self.plan, self.comm = between(sublayer, plan.workload), plan.between(sublayer), comm
        of_heads, shape = Stretch(one.heads), (one.heads, one.head_size)
        asking, asked = (one.asking.hidden,), (one.asked.hidden,)
        queries = LinearSpec(in_shape=asking, out_shape=shape, stretches=(of_heads,))
        keys_values = LinearSpec(
            in_shape=asked, out_shape=(2 * one.heads, one.head_size), stretches=(of_heads, of_heads)
        )
        back = LinearSpec(in_shape=shape, out_shape=asking, stretches=(of_heads,))
        self.q = plan.linear_in(queries, comm)
        self.kv = plan.linear_in(keys_values, comm)
        self.out = plan.linear_out(back, comm)

    def forward(self, x: Tensor, asked: Tensor, queries: Shard, keys: Shard) -> Tensor:
        """``queries``, ``keys``: which tokens of each strand the ranks hold, along dim 1."""
        q, (k, v) = self.q(x, queries), self.kv(asked, keys).chunk(2, -2)
        scores = Scores(dims=(1,), queries=queries)
        return self.out(self.plan.attend(q, k, v, scores, keys, self.comm), queries)


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
        case StreamAttention():
            return BetweenStrands(sublayer, shared.plan, shared.comm)
