"""Stand-ins for packages that run on GPUs alone, with their signatures: TransformerEngine, xDiT.

Each attends right, and sends what the package's source sends: blocks of keys N - 1 times in forward
and in backward, gradients of keys as often, or in float32 once more, which takes them home.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn


def install() -> None:
    """From here on an import finds the stand-ins."""
    made = {name: ModuleType(name) for name in ("transformer_engine", "xfuser", "yunchang")}
    made |= {f"transformer_engine.{name}": ModuleType(name) for name in ("pytorch",)}
    made |= {f"xfuser.{name}": ModuleType(name) for name in ("core", "core.long_ctx_attention")}
    vars(made["transformer_engine.pytorch"])["DotProductAttention"] = DotProductAttention
    vars(made["xfuser.core.long_ctx_attention"])["xFuserLongContextAttention"] = OfXDiT
    vars(made["yunchang"])["set_seq_parallel_pg"] = OfXDiT.set_groups
    sys.modules.update(made)


class DotProductAttention(nn.Module):
    """TransformerEngine's, with context parallel by p2p."""

    def __init__(
        self,
        num_attention_heads: int,
        kv_channels: int,
        num_gqa_groups: int | None = None,
        attention_dropout: float = 0.0,
        qkv_format: str = "sbhd",
        attn_mask_type: str = "causal",
    ) -> None:
        super().__init__()
        assert qkv_format == "bshd"
        self.heads, self.size, self.keys = num_attention_heads, kv_channels, num_gqa_groups
        self.causal = {"causal": True, "no_mask": False}[attn_mask_type]

    def set_context_parallel_group(
        self, cp_group: Any, cp_global_ranks: list[int], cp_stream: Any, cp_comm_type: str = "p2p"
    ) -> None:
        assert cp_comm_type == "p2p"
        self.cp_group, self.ranks = cp_group, cp_global_ranks

    def forward(self, query_layer: Tensor, key_layer: Tensor, value_layer: Tensor) -> Tensor:
        assert query_layer.shape[2:] == (self.heads, self.size)
        assert key_layer.shape[2] == self.keys
        assert query_layer.shape[1] % 2 == 0
        qkv = query_layer, key_layer, value_layer
        return RingOfHops.apply(*qkv, self.cp_group, self.causal, False).flatten(2)


class OfXDiT(nn.Module):
    """xDiT's layer, and the groups that yunchang keeps for it."""

    degrees = 1, 1

    @classmethod
    def set_groups(cls, ulysses: int, ring: int, rank: int, world_size: int) -> None:
        assert world_size % (ulysses * ring) == 0
        assert rank < world_size
        cls.degrees = ulysses, ring

    def __init__(self) -> None:
        super().__init__()
        world, (neighbours, _) = dist.get_world_size(), self.degrees
        apart = range(0, world, neighbours)
        self.heads, _ = dist.new_subgroups_by_enumeration(
            [[first + i for i in range(neighbours)] for first in apart]
        )
        self.ring, _ = dist.new_subgroups_by_enumeration(
            [[first + i for first in apart] for i in range(neighbours)]
        )

    def forward(self, attn: None, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        q, k, v = (Switch.apply(x, self.heads, 2, 1) for x in (query, key, value))
        return Switch.apply(RingOfHops.apply(q, k, v, self.ring, False, True), self.heads, 1, 2)


class Switch(torch.autograd.Function):
    """An all-to-all: ``split`` becomes a rank's own part, ``joined`` whole."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any, split: int, joined: int) -> Tensor:
        ctx.how = group, split, joined
        parts = torch.stack(x.chunk(group.size(), split)).contiguous()
        received = torch.empty_like(parts)
        dist.all_to_all_single(received, parts, group=group)
        return torch.cat(received.unbind(), joined)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        group, split, joined = ctx.how
        return Switch.apply(*grads, group, joined, split), None, None, None


class RingOfHops(torch.autograd.Function):
    """(b, S/N, Z, D): attention to the keys of a ring; ``once_more``: gradients go home by N hops
    in float32, else by N - 1."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, group: Any, causal: bool, once_more: bool
    ) -> Tensor:
        ctx.how = group, causal, once_more
        ctx.save_for_backward(q, k, v)
        blocks = went_round(torch.stack([k, v]), group)
        return attended(q, *torch.cat(blocks, 2), group, causal)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        (group, causal, once_more), (q, k, v) = ctx.how, ctx.saved_tensors
        rank, ranks = group.rank(), group.size()
        blocks = went_round(torch.stack([k, v]), group)
        leaves = [x.detach().requires_grad_() for x in (q, *blocks)]
        with torch.enable_grad():
            out = attended(leaves[0], *torch.cat(leaves[1:], 2), group, causal)
        d_q, *d_blocks = torch.autograd.grad(out, leaves, grads)
        owner = rank if once_more else (rank - 1) % ranks
        total = d_blocks[owner].to(torch.float32 if once_more else q.dtype)
        for hop in range(1, ranks + once_more):
            total = shifted(total, group)
            owner = (owner - 1) % ranks
            if hop < ranks:
                total = total + d_blocks[owner].to(total.dtype)
        return d_q, *total.to(q.dtype), None, None, None


def went_round(block: Tensor, group: Any) -> list[Tensor]:
    """The block of every rank, in order, by N - 1 hops."""
    rank, ranks = group.rank(), group.size()
    blocks = {rank: block}
    for hop in range(1, ranks):
        block = blocks[(rank - hop) % ranks] = shifted(block, group)
    return [blocks[owner] for owner in range(ranks)]


def shifted(x: Tensor, group: Any) -> Tensor:
    """The tensor of the rank before."""
    members: Sequence[int] = dist.get_process_group_ranks(group)
    rank, ranks, received = group.rank(), group.size(), torch.empty_like(x)
    after, before = members[(rank + 1) % ranks], members[(rank - 1) % ranks]
    sends = dist.P2POp(dist.isend, x.contiguous(), after, group)
    for request in dist.batch_isend_irecv([sends, dist.P2POp(dist.irecv, received, before, group)]):
        request.wait()
    return received


def attended(q: Tensor, k: Tensor, v: Tensor, group: Any, causal: bool) -> Tensor:
    """Of this rank's queries to all keys, which ranks hold by head and tail under a mask."""
    rank, ranks, length = group.rank(), group.size(), q.shape[1]
    mask = None
    if causal:
        halves = torch.arange(ranks * length).view(2 * ranks, -1)
        held = [torch.cat([halves[r], halves[-1 - r]]) for r in range(ranks)]
        mask = held[rank][:, None] >= torch.cat(held)
    folded = (x.transpose(1, 2) for x in (q, k, v))
    out = F.scaled_dot_product_attention(*folded, attn_mask=mask, enable_gqa=True)
    return out.transpose(1, 2)
