"""Heads shared out between the ranks, for which a sharded axis becomes whole; and the bytes sent.

    q, k, v   (B, T/N, S, Z, D)   --switch-->   (B, T, S, Z/N, D)
    out       (B, T, S, Z/N, D)   --switch-->   (B, T/N, S, Z, D)

Heads need not divide: 4 on 3 ranks are 2, 1, 1. With grouped queries a rank gets whole groups
where they divide as evenly as queries would; else several ranks get a copy of a key head.

A pair bias goes by heads as well. It is computed from a side input that is sharded like the
activation: each rank projects its own rows of the pair tensor to one bias for each head,
(B, S/N, S, Z). To attend a whole axis takes the other ranks' rows too, which an account of
activations alone leaves out.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import accumulate
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from spbench.comm.collectives import Collectives
from spbench.comm.compiler import applied
from spbench.layers.attention import Scores, attend_whole
from spbench.layers.memory_order import in_memory_order
from spbench.workload.block import Attention, Sublayer
from spbench.workload.mesh import Members, Mesh
from spbench.workload.sharding import Shard, Sizes, runs_of, shard_sizes
from spbench.workload.strands import Between
from spbench.workload.traffic import Traffic, Transfer, along, along_held, shared_length
from spbench.workload.workload import Workload

Heads = tuple[Tensor, Tensor, Tensor]
"""Queries, keys and values, (…, Z, D)."""


@dataclass(frozen=True, kw_only=True)
class HeadShares:
    """The query heads and the key heads that each rank computes with."""

    queries: Sizes
    """Number of query heads of each rank."""
    keys: tuple[range, ...]
    """Key heads of each rank, in order; several ranks may have copies of one."""
    group: int
    """Query heads for each key head."""
    starts: Sizes
    """The first query head of each rank, and their number."""

    @property
    def key_sizes(self) -> Sizes:
        return tuple(len(heads) for heads in self.keys)

    def spread(self, x: Tensor) -> Tensor:
        """Key heads in the order of the ranks, repeated where several ranks need them."""
        if sum(self.key_sizes) == x.shape[-2]:
            return x
        return torch.cat([x.narrow(-2, heads[0], len(heads)) for heads in self.keys], -2)

    def matched(self, x: Tensor, rank: int) -> Tensor:
        """Key heads of ``rank``, repeated so that each serves equally many query heads."""
        users = [self._users_of(head, rank) for head in self.keys[rank]]
        if len(set(users)) == 1:
            return x
        heads = zip(x.split(1, -2), users, strict=True)
        return torch.cat([head.expand(*head.shape[:-2], n, -1) for head, n in heads], -2)

    def matched_size(self, rank: int) -> int:
        """Number of key heads that ``matched`` gives."""
        heads = self.keys[rank]
        if self.group == 1:
            return len(heads)
        # Only the first and the last key head may serve fewer query heads here than a whole group.
        ends = [self._users_of(head, rank) for head in (heads[0], heads[-1])]
        between = [self.group] if len(heads) > 2 else []
        return len(heads) if len({*ends, *between}) == 1 else self.queries[rank]

    def _users_of(self, head: int, rank: int) -> int:
        """Query heads of ``rank`` that a key head serves."""
        # Query heads [head g, (head + 1) g) share a key head; of these the rank has [first, last).
        first, last = self.starts[rank], self.starts[rank + 1]
        return min((head + 1) * self.group, last) - max(head * self.group, first)


@cache
def share_groups(key_heads: int, group: int, ranks: int) -> Sizes:
    """Query heads for each rank by whole groups, as even as can be."""
    return tuple(count * group for count in shard_sizes(key_heads, ranks))


def padded_heads(heads: int, key_heads: int, ranks: int) -> tuple[int, int]:
    """Query heads and key heads with as many more, of zeros, as let every rank have equally many.

    Nothing is added where queries divide already; else key heads, with all queries of each.

    >>> padded_heads(14, 14, 4)
    (16, 16)
    """
    if heads % ranks == 0:
        return heads, key_heads
    keys = math.ceil(key_heads / ranks) * ranks
    return keys * (heads // key_heads), keys


def all_heads(workload: Workload, ranks: int, pads: bool) -> Workload:
    """A workload with all the heads that ``ranks`` ranks compute, those of zeros too."""
    if not pads:
        return workload
    heads, keys = padded_heads(workload.heads, workload.key_heads, ranks)
    sizes = {"heads": heads, "kv_heads": keys, "head_dim": workload.head_size}
    return workload.model_copy(update=sizes)


@cache
def cut_heads(heads: int, key_heads: int, ranks: int) -> Sizes:
    """Query heads of each rank where weights are cut: whole groups, or where there are more ranks
    than key heads single heads."""
    if ranks > key_heads:
        return shard_sizes(heads, ranks)
    return share_groups(key_heads, heads // key_heads, ranks)


def matched_keys(
    k: Tensor, v: Tensor, workload: Workload, comm: Collectives
) -> tuple[Tensor, Tensor]:
    """Keys and values of this rank's part of cut weights, each for as many of its queries."""
    if comm.size <= workload.key_heads:
        return k, v
    shares = share_heads(workload.heads, workload.key_heads, comm.size)
    return shares.matched(k, comm.rank), shares.matched(v, comm.rank)


@cache
def share_heads(heads: int, key_heads: int, ranks: int) -> HeadShares:
    """Shares of whole groups where those are as even as can be, else of single query heads."""
    group = heads // key_heads
    # 8 query heads, 4 of keys, 3 ranks: single heads, 3, 3, 2, as groups would be 4, 2, 2.
    queries, groups = shard_sizes(heads, ranks), share_groups(key_heads, group, ranks)
    if key_heads >= ranks and max(groups) == max(queries):
        queries = groups
    return HeadShares(
        queries=queries,
        keys=tuple(
            # the key heads of the first and of the last of its query heads, and all between
            range(first // group, (first + count - 1) // group + 1)
            for first, count in runs_of(queries)
        ),
        group=group,
        starts=tuple(accumulate(queries, initial=0)),
    )


# Attention by heads, and its bytes


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

    Parameters
    ----------
    q, k, v : Tensor
        (B, *axes, Z, D), cut along the sharded axis; k and v may have fewer heads.
    scores : Scores
        The attended dims; mask, projection and bias.
    shard : Shard
        Which positions each rank of the group holds.
    comm : Collectives
        Those of the group that shares heads.
    attend
        What attends with whole positions and a part of the heads; by default one device's
        attention.
    pads : bool
        Whether heads that do not divide are padded.

    Returns
    -------
    Tensor
        In the shape of ``q``.
    """
    dim = q.ndim - 2
    if pads:
        q, k, v, scores, heads = *_padded(q, k, v, scores, comm.size), q.shape[dim]
        return attend_by_heads(q, k, v, scores, shard, comm, attend).narrow(dim, 0, heads)
    shares = share_heads(q.shape[dim], k.shape[dim], comm.size)
    mine = bias_of_heads(scores, shares.queries, comm)
    queries = Shard.of_sizes(dim, shares.queries)
    keys = Shard.of_sizes(dim, shares.key_sizes)
    qkv = q, shares.spread(k), shares.spread(v)
    q, k, v = _to_heads(qkv, shard, (queries, keys, keys), comm, scores.queries)
    k, v = shares.matched(k, comm.rank), shares.matched(v, comm.rank)
    out = (attend or attend_whole)(q, k, v, mine)
    home = scores.queries or shard
    return comm.switch(out, before=queries, after=home, outermost=home.dim)[0]


def _to_heads(
    qkv: Heads,
    before: Shard,
    after: tuple[Shard, Shard, Shard],
    comm: Collectives,
    of_queries: Shard | None,
) -> Heads:
    """q, k and v in one all-to-all, cut along their heads as ``after`` says; where queries are of
    other positions, in one of their own."""
    if of_queries is not None:
        q, k, v = qkv
        (q,) = comm.switch(q, before=of_queries, after=after[0])
        k, v = comm.switch(k, v, before=before, after=after[1:])
        return q, k, v
    if qkv[0].shape[-1] == qkv[2].shape[-1]:
        q, k, v = comm.switch(*qkv, before=before, after=after)
        return q, k, v
    # What travels together differs along the cut dim alone: heads of two sizes go number by number.
    sizes = [x.shape[-1] for x in qkv]
    numbers = [
        Shard.of_sizes(heads.dim, tuple(count * size for count in heads.sizes))
        for heads, size in zip(after, sizes, strict=True)
    ]
    flat = comm.switch(*(x.flatten(-2) for x in qkv), before=before, after=numbers)
    q, k, v = (x.unflatten(-1, (-1, size)) for x, size in zip(flat, sizes, strict=True))
    return q, k, v


def _padded(
    q: Tensor, k: Tensor, v: Tensor, scores: Scores, ranks: int
) -> tuple[Tensor, Tensor, Tensor, Scores]:
    """Heads of zeros behind the others; themselves where heads divide."""
    heads, keys = padded_heads(q.shape[-2], k.shape[-2], ranks)
    if heads == q.shape[-2]:
        return q, k, v, scores
    if scores.sinks is not None:
        scores = replace(scores, sinks=F.pad(scores.sinks, (0, heads - q.shape[-2])))
    if scores.bias is not None:
        scores = replace(scores, bias=F.pad(scores.bias, (0, heads - q.shape[-2])))
    return _with_zeros(q, heads), _with_zeros(k, keys), _with_zeros(v, keys), scores


def _with_zeros(x: Tensor, heads: int) -> Tensor:
    return in_memory_order(lambda x: F.pad(x, (0, 0, 0, heads - x.shape[-2])), x, 2)


def bias_of_heads(scores: Scores, queries: Sizes, comm: Collectives) -> Scores:
    """Scores with the whole bias of this rank's heads, from its positions of all heads; and with
    their sinks."""
    scores = sinks_of_heads(scores, queries, comm.rank)
    if scores.bias is None or scores.bias_shard is None:
        return scores
    (bias,) = comm.switch(scores.bias, before=scores.bias_shard, after=Shard.of_sizes(3, queries))
    return replace(scores, bias=bias, bias_shard=None)


def sinks_of_heads(scores: Scores, queries: Sizes, rank: int) -> Scores:
    """Scores with the sinks of this rank's heads alone."""
    if scores.sinks is None:
        return scores
    return replace(scores, sinks=scores.sinks.split(list(queries))[rank])


def traffic_by_heads(
    attention: Attention, workload: Workload, axis: str, held: Sizes, pads: bool = False
) -> Traffic:
    """Transfers of ``attend_by_heads`` in forward and in backward.

    Parameters
    ----------
    attention, workload
        The sublayer, and what it is of.
    axis : str
        The sharded one.
    held : Sizes
        Positions of the sequence that each rank of the group holds (``Plan.held``): together some
        of it, or all.
    pads : bool
        Whether heads that do not divide are padded.

    Returns
    -------
    Traffic
        In forward q, k, v there and the result back; in backward the same reversed.
    """
    workload = all_heads(workload, len(held), pads)
    shares = share_heads(workload.heads, workload.key_heads, len(held))
    # of one head over the positions that these ranks hold together
    of_key, of_value = (
        each * sum(held) // shared_length(workload, axis)
        for each in (workload.head_bytes, workload.value_head_bytes)
    )
    Q, result_bytes = workload.heads * of_key, workload.heads * of_value
    keys_bytes = sum(shares.key_sizes) * (of_key + of_value)
    to_heads = Transfer.together(
        Transfer.all_to_all(Q, held, shares.queries),
        Transfer.all_to_all(keys_bytes, held, shares.key_sizes),
    )
    back = Transfer.together(
        Transfer.all_to_all(Q, shares.queries, held),
        Transfer.all_to_all(keys_bytes, shares.key_sizes, held),
    )
    bias, bias_back = bias_traffic_by_heads(attention, workload, shares.queries)
    out = Transfer.all_to_all(result_bytes, shares.queries, held)
    d_out = Transfer.all_to_all(result_bytes, held, shares.queries)
    return [to_heads, *bias, out], [d_out, *bias_back, back]


def traffic_between_by_heads(
    one: Between, queries: Sizes, keys: Sizes, pads: bool = False
) -> Traffic:
    """Transfers of ``attend_by_heads`` whose queries are of other positions than the keys.

    Parameters as of ``Plan.traffic_between``, and whether heads that do not divide are padded.

    Returns
    -------
    In forward the queries, keys and values there, and the result back; in backward the reverse.
    """
    heads, ranks = one.heads, len(keys)
    if pads:
        heads, _ = padded_heads(heads, heads, ranks)
    held, of_head = share_heads(heads, heads, ranks).queries, one.token_bytes // one.heads
    Q, KV = heads * of_head * sum(queries), 2 * heads * of_head * sum(keys)
    # The gradient of the result goes as queries do, those of queries as the result.
    there, home = Transfer.all_to_all(Q, queries, held), Transfer.all_to_all(Q, held, queries)
    keys_there, keys_home = (
        Transfer.all_to_all(KV, keys, held),
        Transfer.all_to_all(KV, held, keys),
    )
    return [there, keys_there, home], [there, keys_home, home]


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


def bias_of_groups(scores: Scores, workload: Workload, comm: Collectives) -> Scores:
    """``bias_of_heads`` with heads cut as weights are."""
    heads = cut_heads(workload.heads, workload.key_heads, comm.size)
    return bias_of_heads(scores, heads, comm)


def bias_traffic_by_groups(sublayer: Sublayer, workload: Workload, ranks: int) -> Traffic:
    """Transfers of ``bias_of_groups`` in forward and in backward."""
    heads = cut_heads(workload.heads, workload.key_heads, ranks)
    return bias_traffic_by_heads(sublayer, workload, heads)


# Bytes in groups of ranks, with another exchange across the groups

HEADS = "heads"
"""The axis of a mesh whose groups share out heads: its last."""
Across = Callable[[Attention, Workload, str], Traffic]
"""What an attention along an axis sends across the groups, of a workload with a rank's heads."""


def traffic_in_groups(
    attention: Attention,
    workload: Workload,
    axis: str,
    held: Sizes,
    mesh: Mesh,
    across: Across,
    pads: bool = False,
) -> Traffic:
    """Transfers of the groups and across them, over all ranks.

    Parameters
    ----------
    attention, workload
        The sublayer, and what it is of.
    axis : str
        The sharded one.
    held : Sizes
        Positions of the sequence that each of all ranks holds.
    mesh : Mesh
        The groups that share heads, and those across them.
    across
        The traffic of what attends across groups, for a workload with the heads of one rank.
    pads : bool
        Whether heads that do not divide are padded.

    Returns
    -------
    Traffic
        Of all ranks: into the groups' heads, across, and back.
    """
    workload = all_heads(workload, mesh.size_of(HEADS), pads)
    inside = partial(traffic_by_heads, attention, workload, axis)
    shares = share_heads(workload.heads, workload.key_heads, mesh.size_of(HEADS))

    def heads_of(place: int) -> tuple[int, int]:
        return shares.queries[place], shares.matched_size(place)

    (there, out), (back, home) = along_held(HEADS, mesh, held, inside)
    forward, backward = traffic_across(
        workload, mesh, heads_of, lambda part: across(attention, part, axis)
    )
    return [there, *forward, out], [back, *backward, home]


def traffic_across(
    workload: Workload,
    mesh: Mesh,
    heads_of: Callable[[int], tuple[int, int]],
    across: Callable[[Workload], Traffic],
) -> Traffic:
    """Transfers across the groups of the mesh's last axis, over all ranks.

    ``heads_of``: the query and key heads of a rank, by its place in its group.

    Parameters
    ----------
    workload, mesh
        What is attended, and all groups.
    heads_of
        Query and key heads of each place in a group.
    across
        The traffic of what attends there, for a workload with so many heads.

    Returns
    -------
    Traffic
        Of all ranks; ranks with the same place in their groups send to each other.
    """
    others, size = mesh.without(mesh.last), mesh.size_of(mesh.last)
    of_heads = cache(lambda heads, keys: across(with_heads(workload, heads, keys)))

    def of_place(members: Members) -> Traffic:
        return of_heads(*heads_of(members[0] % size))

    return along("+".join(others), mesh.groups(*others), of_place)


def of_first(workload: Workload, size: int, pads: bool = False) -> Workload:
    """The workload with the heads of the first rank of a group of ``size``, which has the most."""
    workload = all_heads(workload, size, pads)
    shares = share_heads(workload.heads, workload.key_heads, size)
    return with_heads(workload, shares.queries[0], shares.matched_size(0))


def with_heads(workload: Workload, heads: int, key_heads: int) -> Workload:
    """The workload with these heads alone, of the same size."""
    own = {"heads": heads, "kv_heads": key_heads, "head_dim": workload.head_size}
    return workload.model_copy(update=own)


# The bias of scores


@final
class PairBias(nn.Module):
    """This rank's rows of the pair tensor (B, S/N, S, C) -> its rows of bias (B, S/N, S, Z).

    There is no constant for each head: softmax would not see it, and its gradient is zero.
    """

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(heads, channels))

    def forward(self, pairs: Tensor) -> Tensor:
        return F.linear(pairs, self.weight)


def gathered(scores: Scores, comm: Collectives) -> Scores:
    """``scores`` with the whole bias, (B, S, S, Z), on every rank. Backward: a reduce-scatter."""
    if scores.bias is None or scores.bias_shard is None:
        return scores
    return replace(scores, bias=comm.all_gather(scores.bias, scores.bias_shard), bias_shard=None)


def gather_traffic(
    sublayer: Sublayer, workload: Workload, cut: Callable[[str], Shard]
) -> tuple[list[Transfer], list[Transfer]]:
    """Transfers of ``gathered`` in forward and in backward; ``cut``: how an axis is cut."""
    if not isinstance(sublayer, Attention) or not sublayer.pair_bias:
        return [], []
    (axis,) = sublayer.axes
    sizes = cut(axis).sizes
    whole_bytes = workload.bias_bytes(axis)
    return [Transfer.all_gather(whole_bytes, sizes)], [Transfer.reduce_scatter(whole_bytes, sizes)]


def taken(scores: Scores, workload: Workload, comm: Collectives) -> Scores:
    """``scores`` with the bias of this rank's heads alone, cut as weights are.

    Every rank has that of all heads. Backward: an all-gather.
    """
    heads = cut_heads(workload.heads, workload.key_heads, comm.size)
    scores = sinks_of_heads(scores, heads, comm.rank)
    if scores.bias is None:
        return scores
    own: Tensor = applied(_Taken, scores.bias, Shard.of_sizes(3, heads), comm)
    return replace(scores, bias=own, bias_shard=None)


def taken_traffic(sublayer: Sublayer, workload: Workload, ranks: int) -> list[Transfer]:
    """Transfers of ``taken`` in backward."""
    if not isinstance(sublayer, Attention) or not sublayer.pair_bias:
        return []
    heads = cut_heads(workload.heads, workload.key_heads, ranks)
    return [Transfer.all_gather(workload.bias_bytes(*sublayer.axes), heads)]


class _Taken(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, bias: Tensor, heads: Shard, comm: Collectives) -> Tensor:
        ctx.how = heads, comm
        return comm.take(bias, heads).clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        heads, comm = ctx.how
        return comm.start_all_gather(grad, heads).wait(), None, None
