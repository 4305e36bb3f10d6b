"""Heads shared out between the ranks: a sharded axis made whole, and what that costs.

    q, k, v   (B, T/N, S, Z, D)   --switch-->   (B, T, S, Z/N, D)
    out       (B, T, S, Z/N, D)   --switch-->   (B, T/N, S, Z, D)

Heads need not divide: 4 on 3 ranks are 2, 1, 1. With grouped queries a rank gets whole groups
as long as there are enough of them; beyond that several ranks get a copy of the same key head.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from spbench.comm.collectives import Collectives
from spbench.comm.transfer import Transfer
from spbench.strategies.kernel import Scores, attend_whole
from spbench.workload.shards import Shard, Sizes, runs_of, shard_sizes
from spbench.workload.sublayers import Attention, CrossAttention, Mlp, Sublayer
from spbench.workload.workload import Workload

Ways = tuple[list[Transfer], list[Transfer]]
"""What is sent in forward and in backward."""


@dataclass(frozen=True, kw_only=True)
class HeadShares:
    """How many query heads and which key heads each rank computes with."""

    queries: Sizes
    keys: tuple[tuple[int, ...], ...]
    """The key head of each rank's, once or in several ranks."""
    group: int
    """Query heads for each key head."""

    @property
    def key_sizes(self) -> Sizes:
        return tuple(len(heads) for heads in self.keys)

    def spread(self, x: Tensor) -> Tensor:
        """Key heads in the order of the ranks, repeated where several ranks need them."""
        wanted = [head for heads in self.keys for head in heads]
        return _heads(x, wanted) if len(wanted) > x.shape[-2] else x

    def matched(self, x: Tensor, rank: int) -> Tensor:
        """Key heads of ``rank``, so that its query heads find theirs by even groups."""
        first = sum(self.queries[:rank])
        count, held = self.queries[rank], self.keys[rank]
        wanted = [held.index((first + i) // self.group) for i in range(count)]
        even = count % len(held) == 0 and all(
            at == i * len(held) // count for i, at in enumerate(wanted)
        )
        return x if even else _heads(x, wanted)


def _heads(x: Tensor, wanted: list[int]) -> Tensor:
    return x.index_select(-2, torch.tensor(wanted, device=x.device))


@cache
def share_heads(heads: int, key_heads: int, ranks: int) -> HeadShares:
    """Whole groups where there are enough, else query heads as even as can be."""
    group = heads // key_heads
    if key_heads >= ranks:
        groups = runs_of(shard_sizes(key_heads, ranks))
        return HeadShares(
            queries=tuple(count * group for _, count in groups),
            keys=tuple(tuple(range(first, first + count)) for first, count in groups),
            group=group,
        )
    queries = shard_sizes(heads, ranks)
    return HeadShares(
        queries=queries,
        keys=tuple(
            tuple(range(first // group, (first + count - 1) // group + 1))
            for first, count in runs_of(queries)
        ),
        group=group,
    )


def attend_by_heads(
    q: Tensor, k: Tensor, v: Tensor, scores: Scores, shard: Shard, comm: Collectives
) -> Tensor:
    """Attention of (B, *axes, Z, D) with the sharded axis whole and the heads shared out."""
    dim = q.ndim - 2
    shares = share_heads(q.shape[dim], k.shape[dim], comm.size)
    mine = bias_of_heads(scores, shares.group, comm)
    queries = Shard.of_sizes(dim, shares.queries)
    keys = Shard.of_sizes(dim, shares.key_sizes)
    q, k, v = comm.switch(
        q, shares.spread(k), shares.spread(v), before=shard, after=(queries, keys, keys)
    )
    k, v = shares.matched(k, comm.rank), shares.matched(v, comm.rank)
    out = attend_whole(q, k, v, mine)
    (out,) = comm.switch(out, before=queries, after=shard)
    return out


def bias_of_heads(scores: Scores, group: int, comm: Collectives) -> Scores:
    """With the whole bias of this rank's heads, from this rank's positions of all heads."""
    if scores.bias is None or scores.bias_shard is None:
        return scores
    count = scores.bias.shape[3]
    heads = Shard.of_sizes(3, share_heads(count, count // group, comm.size).queries)
    (bias,) = comm.switch(scores.bias, before=scores.bias_shard, after=heads)
    return replace(scores, bias=bias, bias_shard=None)


def traffic_by_heads(attention: Attention, workload: Workload, axis: str, ranks: int) -> Ways:
    """What ``attend_by_heads`` sends in forward and in backward while ``axis`` is sharded."""
    shares = share_heads(workload.heads, workload.key_heads, ranks)
    held, M = shard_sizes(workload.axes[axis], ranks), workload.activation_bytes
    keys_bytes = 2 * sum(shares.key_sizes) * (M // workload.heads)
    to_heads = Transfer.together(
        Transfer.all_to_all(M, held, shares.queries),
        Transfer.all_to_all(keys_bytes, held, shares.key_sizes),
    )
    back = Transfer.together(
        Transfer.all_to_all(M, shares.queries, held),
        Transfer.all_to_all(keys_bytes, shares.key_sizes, held),
    )
    bias, bias_back = bias_traffic_by_heads(attention, workload, ranks)
    there, here = (
        Transfer.all_to_all(M, shares.queries, held),
        Transfer.all_to_all(M, held, shares.queries),
    )
    return [to_heads, *bias, there], [here, *bias_back, back]


def bias_traffic_by_heads(sublayer: Sublayer, workload: Workload, ranks: int) -> Ways:
    """What ``bias_of_heads`` sends."""
    if not isinstance(sublayer, Attention) or not sublayer.pair_bias:
        return [], []
    (axis,) = sublayer.axes
    held = shard_sizes(workload.axes[axis], ranks)
    heads = share_heads(workload.heads, workload.key_heads, ranks).queries
    whole_bytes = workload.bias_bytes(axis)
    return [Transfer.all_to_all(whole_bytes, held, heads)], [
        Transfer.all_to_all(whole_bytes, heads, held)
    ]


def heads_why_not(workload: Workload, ranks: int) -> str | None:
    """For strategies that share the heads of self-attention between the ranks."""
    return _too_few(workload.heads, "heads", ranks) if workload.attentions else None


def cut_why_not(workload: Workload, ranks: int) -> str | None:
    """For strategies that cut the weights of every sublayer, by whole groups of heads."""
    found = []
    for sublayer in workload.block:
        match sublayer:
            case Attention():
                what = "heads" if workload.key_heads == workload.heads else "kv_heads"
                found.append((workload.key_heads, what))
            case CrossAttention():
                own = "heads of cross_attention" if sublayer.heads else "heads"
                found.append((sublayer.heads or workload.heads, own))
            case Mlp():
                found.append((workload.columns(sublayer), "columns of the mlp"))
    fewest, what = min(found)
    return _too_few(fewest, what, ranks)


def _too_few(count: int, what: str, ranks: int) -> str | None:
    if count >= ranks:
        return None
    return (
        f"{count} {what} give {ranks - count} of {ranks} ranks nothing to do; "
        f"use 1 to {count} ranks, or {what} of {ranks} or more"
    )
