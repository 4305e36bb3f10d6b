"""Heads shared out between the ranks, for which a sharded axis becomes whole; and the bytes sent.

q, k, v   (B, T/N, S, Z, D)   --switch-->   (B, T, S, Z/N, D)
out       (B, T, S, Z/N, D)   --switch-->   (B, T/N, S, Z, D)
"""

from collections.abc import Callable
from dataclasses import replace

import torch.nn.functional as F
from torch import Tensor

from spbench.comm.collectives import Collectives
from spbench.layers.attention import Scores, attend_whole
from spbench.layers.head_shares import all_heads, padded_heads, share_groups, share_heads
from spbench.layers.memory_order import in_memory_order
from spbench.workload.block import Attention, Sublayer
from spbench.workload.sharding import Shard, Sizes, shard_sizes
from spbench.workload.traffic import Traffic, Transfer, shared_length
from spbench.workload.workload import Workload


def attend_by_heads(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scores: Scores,
    shard: Shard,
    comm: Collectives,
    attend: Callable[[Tensor, Tensor, Tensor, Scores], Tensor] | None = None,
    pads: bool = False,
) -> Tensor:
    """Attention of (B, *axes, Z, D) with the sharded axis whole and the heads shared out.

    Among other groups of ranks the axis is whole only within this one: ``attend`` does the rest.
    ``pads``: heads of zeros come behind where heads do not divide, and are taken off the result.
    """
    dim = q.ndim - 2
    if pads:
        q, k, v, scores, heads = *_padded(q, k, v, scores, comm.size), q.shape[dim]
        return attend_by_heads(q, k, v, scores, shard, comm, attend).narrow(dim, 0, heads)
    shares = share_heads(q.shape[dim], k.shape[dim], comm.size)
    mine = bias_of_heads(scores, shares.queries, comm)
    queries = Shard.of_sizes(dim, shares.queries)
    keys = Shard.of_sizes(dim, shares.key_sizes)
    q, k, v = comm.switch(
        q, shares.spread(k), shares.spread(v), before=shard, after=(queries, keys, keys)
    )
    k, v = shares.matched(k, comm.rank), shares.matched(v, comm.rank)
    out = (attend or attend_whole)(q, k, v, mine)
    return comm.switch(out, before=queries, after=shard, outermost=shard.dim)[0]


def _padded(
    q: Tensor, k: Tensor, v: Tensor, scores: Scores, ranks: int
) -> tuple[Tensor, Tensor, Tensor, Scores]:
    """Heads of zeros behind the others; themselves where heads divide."""
    heads, keys = padded_heads(q.shape[-2], k.shape[-2], ranks)
    if heads == q.shape[-2]:
        return q, k, v, scores
    if scores.bias is not None:
        scores = replace(scores, bias=F.pad(scores.bias, (0, heads - q.shape[-2])))
    return _with_zeros(q, heads), _with_zeros(k, keys), _with_zeros(v, keys), scores


def _with_zeros(x: Tensor, heads: int) -> Tensor:
    return in_memory_order(lambda x: F.pad(x, (0, 0, 0, heads - x.shape[-2])), x, 2)


def bias_of_heads(scores: Scores, queries: Sizes, comm: Collectives) -> Scores:
    """Scores with the whole bias of this rank's heads, from its positions of all heads."""
    if scores.bias is None or scores.bias_shard is None:
        return scores
    (bias,) = comm.switch(scores.bias, before=scores.bias_shard, after=Shard.of_sizes(3, queries))
    return replace(scores, bias=bias, bias_shard=None)


def traffic_by_heads(
    attention: Attention, workload: Workload, axis: str, held: Sizes, pads: bool = False
) -> Traffic:
    """Transfers of ``attend_by_heads`` in forward and in backward.

    ``held``: what each rank holds of the sequence (``Strategy.held``); together some of it, or all.
    """
    workload = all_heads(workload, len(held), pads)
    shares = share_heads(workload.heads, workload.key_heads, len(held))
    head_bytes = workload.head_bytes * sum(held) // shared_length(workload, axis)
    Q, keys_bytes = workload.heads * head_bytes, 2 * sum(shares.key_sizes) * head_bytes
    to_heads = Transfer.together(
        Transfer.all_to_all(Q, held, shares.queries),
        Transfer.all_to_all(keys_bytes, held, shares.key_sizes),
    )
    back = Transfer.together(
        Transfer.all_to_all(Q, shares.queries, held),
        Transfer.all_to_all(keys_bytes, shares.key_sizes, held),
    )
    bias, bias_back = bias_traffic_by_heads(attention, workload, shares.queries)
    out = Transfer.all_to_all(Q, shares.queries, held)
    return [to_heads, *bias, out], [Transfer.all_to_all(Q, held, shares.queries), *bias_back, back]


def bias_traffic_by_heads(sublayer: Sublayer, workload: Workload, heads: Sizes) -> Traffic:
    """Transfers of ``bias_of_heads`` in forward and in backward."""
    if not isinstance(sublayer, Attention) or not sublayer.pair_bias:
        return [], []
    (axis,) = sublayer.axes
    held = shard_sizes(workload.axes[axis], len(heads))
    whole_bytes = workload.bias_bytes(axis)
    return [Transfer.all_to_all(whole_bytes, held, heads)], [
        Transfer.all_to_all(whole_bytes, heads, held)
    ]


def bias_of_groups(scores: Scores, group: int, comm: Collectives) -> Scores:
    """``bias_of_heads`` with heads cut by whole groups of ``group`` query heads."""
    count = 0 if scores.bias is None else scores.bias.shape[3]
    return bias_of_heads(scores, share_groups(count // group, group, comm.size), comm)


def bias_traffic_by_groups(sublayer: Sublayer, workload: Workload, ranks: int) -> Traffic:
    """Transfers of ``bias_of_groups`` in forward and in backward."""
    group = workload.heads // workload.key_heads
    return bias_traffic_by_heads(sublayer, workload, share_groups(workload.key_heads, group, ranks))
