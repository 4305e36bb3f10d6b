"""Heads shared out between the ranks in chunks: one is under way while another is attended to.

Each chunk has some key heads of every rank, and their queries: c of the Z/N heads of each.

    q, k, v   (B, T/N, S, N, c, D)   --switch-->   (B, T, S, c, D)   attention   --switch-->   back

While a chunk is attended to, the next one is on its way there and the one before on its way back;
in backward likewise, the last one first. Chunks are cut from q, k and v without a copy, and joined
by one: the results in forward, the gradients of each in backward.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from spbench.comm.collectives import Collectives
from spbench.comm.packing import memory_order
from spbench.comm.started_switches import Flight
from spbench.layers.attention import Scores, attend_whole
from spbench.layers.heads import bias_of_heads
from spbench.layers.memory_order import permuted, restored
from spbench.workload.sharding import Shard, Sizes, shard_sizes
from spbench.workload.workload import Workload


def head_chunks(workload: Workload, ranks: int, most: int) -> int:
    """Chunks of heads, ``most`` of them, or fewer where ranks have fewer key heads; 1 where they
    have unequal numbers of them."""
    keys = workload.key_heads
    return max(1, min(most, keys // ranks)) if keys % ranks == 0 else 1


def attend_in_chunks(
    q: Tensor, k: Tensor, v: Tensor, scores: Scores, shard: Shard, comm: Collectives, chunks: int
) -> Tensor:
    """``heads.attend_by_heads``, one chunk after the other.

    Parameters
    ----------
    q, k, v, scores, shard, comm
        As there; every rank gets as many heads.
    chunks : int
        As many as ``head_chunks`` says, at most.

    Returns
    -------
    Tensor
        In the shape of ``q``.
    """
    dim, ranks = q.ndim - 2, comm.size
    scores = bias_of_heads(scores, shard_sizes(q.shape[dim], ranks), comm)
    group = q.shape[dim] // k.shape[dim]
    keys = shard_sizes(k.shape[dim] // ranks, chunks)  # of a rank, chunk by chunk
    queries = tuple(group * count for count in keys)
    by_chunk = zip(
        *(_apart(x, ranks, sizes) for x, sizes in ((q, queries), (k, keys), (v, keys))), strict=True
    )
    each = Shard.of_sizes(dim, (1,) * ranks)  # of the dim of ranks: the heads of each go to it

    def start(q: Tensor, k: Tensor, v: Tensor) -> list[Flight]:
        # What travels together has one shape: more queries than keys go by themselves, and so do
        # values of another size.
        together = [list(xs) for _, xs in groupby((q, k, v), key=lambda x: x.shape)]
        return [comm.start_switch(*xs, before=shard, after=each) for xs in together]

    starts = deque(partial(start, *qkv) for qkv in by_chunk)
    coming, leaving = deque([starts.popleft()()]), []
    first = 0
    for count in queries:
        if starts:
            coming.append(starts.popleft()())  # under way while this chunk is attended to
        arrived = [x for flight in coming.popleft() for x in flight.wait()]
        own_q, own_k, own_v = (x.squeeze(dim) for x in arrived)
        out = attend_whole(own_q, own_k, own_v, _of_heads(scores, first, count))
        mine = Shard.of_sizes(dim, (count,) * ranks)
        leaving.append(comm.start_switch(out, before=mine, after=shard, outermost=shard.dim))
        first += count
    outs = [flight.wait()[0].unflatten(dim, (ranks, -1)) for flight in leaving]
    return _joined(outs, dim + 1).flatten(dim, dim + 1)


def _apart(x: Tensor, ranks: int, sizes: Sizes) -> Sequence[Tensor]:
    """(B, *axes, Z, D) as chunks (B, *axes, N, c, D) of these sizes."""
    dim = x.ndim - 2
    chunks: Sequence[Tensor] = _Chunks.apply(x.unflatten(dim, (ranks, -1)), sizes, dim + 1)
    return chunks


def _of_heads(scores: Scores, first: int, count: int) -> Scores:
    """Scores with the bias and the sinks of some heads."""
    if scores.sinks is not None:
        scores = replace(scores, sinks=scores.sinks.narrow(0, first, count))
    if scores.bias is None:
        return scores
    return replace(scores, bias=scores.bias.narrow(3, first, count))


def _joined(parts: Sequence[Tensor], dim: int) -> Tensor:
    """Parts (B, *axes, N, c, D) end to end along c, in the order in which their axes lie."""
    order = memory_order(parts[0], 3)
    whole = torch.cat([permuted(part, order) for part in parts], dim)
    return restored(whole, order[: whole.ndim - 3])


class _Chunks(torch.autograd.Function):
    """Stretches of (B, *axes, N, Z/N, D) along the heads, whose gradients are joined by a copy."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, sizes: Sizes, dim: int) -> tuple[Tensor, ...]:
        ctx.dim = dim
        return x.split(list(sizes), dim)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return _joined(grads, ctx.dim), None, None
