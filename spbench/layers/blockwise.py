"""Attention in blocks of keys: the part of each, the merge of parts, the gradients of each.

A softmax over all keys is one over each block, weighted by what the block has of the whole:

    lse_i = log sum exp(q k_i)      out_i = softmax(q k_i) v_i
    lse = log sum_i exp(lse_i)      out = sum_i exp(lse_i - lse) out_i

Backward of a block needs no other: from the merged out and lse a kernel's backward gives what the
block adds to dQ, and its dK and dV. Tensors are folded, (b, Z, S, D).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from spbench.layers.kernels import LIMITS, chunks, gradients_of, with_lse
from spbench.workload.sharding import Run, Shard, shard_sizes


class Part(NamedTuple):
    """Attention of all queries to some of the keys."""

    out: Tensor
    """(b, Z, S, D)."""
    lse: Tensor
    """(b, Z, S): the log-sum-exp of each row of scores, in float32 at least."""


def attend_block(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False) -> Part:
    """Attention of (b, Z, S, D) to a block of keys, which may have fewer heads."""
    count = chunks(q, k, LIMITS, masked=False)
    return Part(*_in_chunks(partial(with_lse, causal=causal), count, q, k, v))


def merge(total: Part | None, part: Part, row: int = 0) -> Part:
    """``total`` and a part of its rows from ``row`` on, in the memory of ``total``.

    In float32 at least: each is rounded once, whatever their number. The sigmoid of a gap between
    log-sum-exps is right for any gap; log(1 + exp(x)) overflows above 88.
    """
    if total is None:
        return part
    total = Part(total.out.to(total.lse.dtype), total.lse)
    out, lse = from_row(total.out, row), from_row(total.lse, row)
    gap = part.lse - lse
    out.lerp_(part.out.to(out.dtype), gap.sigmoid()[..., None])
    torch.logaddexp(lse, part.lse, out=lse)
    return total


def block_gradients(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, whole: Part, *, causal: bool = False
) -> tuple[Tensor, ...]:
    """What a block adds to dQ, and its dK and dV. ``whole``: these queries' merge of all blocks."""
    count = chunks(q, k, LIMITS, masked=False)
    return _in_chunks(partial(gradients_of, causal=causal), count, grad, q, k, v, *whole)


def added(total: Tensor | None, part: Tensor, row: int) -> Tensor:
    """``total`` and a part of its rows from ``row`` on, in float32 at least and in its memory."""
    if total is None:
        return part
    total = total.to(torch.promote_types(total.dtype, torch.float32))
    from_row(total, row).add_(part)
    return total


def from_row(x: Tensor, row: int) -> Tensor:
    """The rows of (b, Z, S, ...) from ``row`` on; of all no view, which takes a host its time."""
    return x[:, :, row:] if row else x


def _in_chunks(
    call: Callable[..., tuple[Tensor, ...]], count: int, *tensors: Tensor
) -> tuple[Tensor, ...]:
    """``call`` of as many equal chunks of the folded batch."""
    if count == 1:
        return call(*tensors)
    sizes = list(shard_sizes(len(tensors[0]), count))
    parts = zip(*(x.split(sizes) for x in tensors), strict=True)
    return tuple(torch.cat(same) for same in zip(*(call(*part) for part in parts), strict=True))


# Keys and values on their way between ranks: how they are packed, and which queries see them.
#
# K and V travel together, (S, 2, b, Z, D): positions are outermost, so that blocks of any length,
# and
# the first keys of a block, lie in one piece of memory. So do their gradients.


class Tile(NamedTuple):
    """What a rank computes with a block of keys: the queries from ``row`` on and the first keys."""

    row: int
    keys: int
    causal: bool
    """Whether it lies on the diagonal: a query sees no later key."""


def tile(keys: Shard, rank: int, owner: int, causal: bool) -> Tile:
    """The tile of the queries of ``rank`` and the keys of ``owner``; without keys: nothing.

    With zigzag shards late queries see all keys of a later rank, all queries the early keys of an
    earlier one.
    """
    mine, others = keys.runs[rank], keys.runs[owner]
    if not causal or owner == rank:
        return Tile(0, keys.sizes[owner], causal)
    blind = sum(length for first, length in mine if first < others[0][0])
    return Tile(blind, sum(n for first, n in others if first < mine[-1][0]), causal=False)


def folded_shard(shard: Shard, positions: int, rank: int) -> Shard:
    """How folded keys are shared, if ``rank`` has ``positions`` of them."""
    span = positions // shard.sizes[rank]
    runs = (tuple((first * span, n * span) for first, n in of_rank) for of_rank in shard.runs)
    return Shard(0, tuple(runs))


def pack(k: Tensor, v: Tensor) -> Tensor:
    """K and V (b, Z, S, D) as they travel, (S, 2, b, Z, D)."""
    return torch.stack([x.permute(2, 0, 1, 3) for x in (k, v)], 1)


def unpack(packed: Tensor) -> Sequence[Tensor]:
    """``pack`` undone, as views."""
    return packed.permute(1, 2, 3, 0, 4).unbind()


def first(packed: Tensor, count: int) -> Tensor:
    """The first of packed keys and values; of all no view, which takes a host its time."""
    return packed[:count] if count < len(packed) else packed


def summed(sums: Tensor, gradients: Sequence[Tensor]) -> Tensor:
    """Packed ``sums`` with the gradients of the first of these k and v, in new memory."""
    if not gradients:
        return sums
    total, count = torch.empty_like(sums), gradients[0].shape[2]
    if count < len(sums):
        total[count:] = sums[count:]
    into, olds = (unpack(first(x, count)) for x in (total, sums))
    for out, old, new in zip(into, olds, gradients, strict=True):
        torch.add(old, new, out=out)
    return total


def by_position(x: Tensor, keys: Shard, dim: int = 0) -> Tensor:
    """``dim`` in order of positions, from rank order."""
    runs = [run for of_rank in keys.runs for run in of_rank]
    return _rearranged(x, runs, sorted(runs), dim)


def by_rank(x: Tensor, keys: Shard, dim: int = 0) -> Tensor:
    """``by_position`` undone."""
    runs = [run for of_rank in keys.runs for run in of_rank]
    return _rearranged(x, sorted(runs), runs, dim)


def _rearranged(x: Tensor, before: list[Run], after: list[Run], dim: int) -> Tensor:
    """Runs along ``dim`` in another order; itself where that is no other."""
    if before == after:
        return x
    parts = dict(zip(before, x.split([length for _, length in before], dim), strict=True))
    return torch.cat([parts[run] for run in after], dim)


def put(gradients: Sequence[Tensor], packed: Tensor, runs: Sequence[Run]) -> None:
    """Writes dK and dV (b, Z, S, D) to these runs of all, one after another."""
    for each, into in zip(gradients, unpack(packed), strict=True):
        parts = each.split([length for _, length in runs], 2)
        for part, run in zip(parts, runs, strict=True):
            into.narrow(2, *run).copy_(part)
