"""The one local attention of all strategies: torch's scaled_dot_product_attention.

Only rings have products of their own, block by block. Tensors are (B, *axes, Z, D): batch, the
sequence axes, heads, head size; keys and values may have fewer heads. Folding gives the kernels'
layout, (batch and other axes, Z, S, D), as a view wherever strides allow.

Two more are as local. Keys and values projected to a short sequence (Wang et al., Linformer, 2020,
eq. 7): each rank projects the part of the sequence that it holds, and the sum over the ranks is
P keys instead of S, whole on each of them. And attention to text that every rank holds whole, whose
queries go in pieces: in backward a kernel shares out samples, heads and blocks of keys among a
GPU's processors, and the text is one block of keys. Where a rank has few heads most processors
would idle: 2 heads of a whole sequence took 27 times as long as they need (docs/decisions/0023).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import final

import torch
from torch import Tensor

from spbench.comm.collectives import Collectives
from spbench.comm.packing import memory_order, undone
from spbench.layers.kernels import attend_apart, attend_tiles, kernel
from spbench.layers.memory_order import reshaped
from spbench.workload.block import Attention
from spbench.workload.mask import Mask, Runs, Strip, Tile, held
from spbench.workload.sharding import Shard
from spbench.workload.traffic import Traffic, Transfer
from spbench.workload.workload import Workload


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Masks, sinks, projection and bias of one self-attention."""

    dims: tuple[int, ...]
    """The attended dims of (B, *axes, Z, D), ascending."""
    causal: bool = False
    mask: Mask | None = None
    """Which keys a query sees; None: all, or those up to its position where ``causal``."""
    sinks: Tensor | None = None
    """(Z,), a score of each head that has no value."""
    projection: Tensor | None = None
    """(2, P, *attended lengths), whole: the projections of keys and of values."""
    bias: Tensor | None = None
    """(B, S, S, Z), queries first, added to the scores; ``bias_shard`` cuts its queries."""
    bias_shard: Shard | None = None
    queries: Shard | None = None
    """How the queries are cut where they are of other positions than the keys; None: alike."""

    @property
    def goes_in_tiles(self) -> bool:
        """Whether there is a mask, or are sinks: no kernel of torch's has them."""
        return self.mask is not None or self.sinks is not None

    def tiles(self, length: int) -> Sequence[Tile]:
        """What queries see of a whole sequence of so many positions."""
        if self.mask is not None:
            return self.mask.tiles(((0, length),), ((0, length),))
        every = Strip(0, length)
        return [Tile(every, every, "early" if self.causal else "whole")]

    def held(self, shape: Sequence[int], shard: Shard) -> tuple[Runs, ...]:
        """Positions of the attended sequence that each rank holds, if this one has (B, *axes, Z, D)
        of that ``shape``, one of whose attended dims is cut."""
        lengths = (shard.length if dim == shard.dim else shape[dim] for dim in self.dims)
        return held(shard, (*lengths,), self.dims.index(shard.dim))


@final
@dataclass(frozen=True)
class Folding:
    """The order in which (B, *axes, Z, D) is folded to (B x other axes, Z, S, D)."""

    shape: tuple[int, ...]
    dims: tuple[int, ...]
    """The attended dims, in the order in which S runs over them."""
    others: tuple[int, ...]
    """The other dims, in the order of the folded batch."""

    @classmethod
    def of(
        cls, shape: Sequence[int], dims: Sequence[int], order: Sequence[int] | None = None
    ) -> "Folding":
        """The batch in this order; by default in tensor order, which is the same on every rank."""
        order = range(len(shape) - 2) if order is None else order
        return cls(tuple(shape), tuple(dims), tuple(dim for dim in order if dim not in dims))

    @classmethod
    def as_in_memory(cls, x: Tensor, scores: Scores) -> "Folding":
        """The batch as it lies in memory, and S where its order is free: folding need not copy."""
        order = memory_order(x, 2)[:-2]
        ordered = scores.causal or scores.mask is not None or scores.projection is not None
        dims = scores.dims if ordered else sorted(scores.dims, key=order.index)
        return cls.of(x.shape, dims, order)

    def of_keys(self, k: Tensor) -> "Folding":
        """The order for keys and values, which may be of other positions than queries."""
        return replace(self, shape=tuple(k.shape))

    def fold(self, x: Tensor) -> Tensor:
        """Folds ``x``, which may have fewer heads and another length."""
        # (B, *axes, Z, D) -> (*others, *attended, Z, D) -> (b, S, Z, D) -> (b, Z, S, D)
        moved = x.permute(*self.others, *self.dims, x.ndim - 2, x.ndim - 1)
        length = math.prod([x.shape[dim] for dim in self.dims])
        return reshaped(moved, (-1, length, *x.shape[-2:])).transpose(1, 2)

    def unfold(self, folded: Tensor) -> Tensor:
        leading = (*self.others, *self.dims)
        lengths = (self.shape[dim] for dim in leading)
        apart = reshaped(folded.transpose(1, 2), (*lengths, *folded.shape[1::2]))
        return apart.permute(*undone(leading), -2, -1)


def attend_whole(q: Tensor, k: Tensor, v: Tensor, scores: Scores) -> Tensor:
    """Attention along whole axes, with every other axis as batch, in the shape of ``q``.

    A bias must be whole too: (B, S, S, Z) with as many heads as ``q``.

    Parameters
    ----------
    q, k, v : Tensor
        (B, *axes, Z, D); k and v may have fewer heads.
    scores : Scores
        The attended dims, which are whole here; mask, projection and bias.

    Returns
    -------
    Tensor
        In the shape of ``q``, its heads as large as those of ``v``.
    """
    ordered = scores.bias is not None  # by sample
    folding = Folding.of(q.shape, scores.dims) if ordered else Folding.as_in_memory(q, scores)
    folded = [folding.fold(x) for x in (q, k, v)]
    if scores.projection is not None:
        folded[1:] = project(folded[1], folded[2], scores.projection)
    if scores.goes_in_tiles:
        own_q, own_k, own_v = folded
        out = _attend_tiles(own_q, own_k, own_v, scores)
    elif scores.bias is None:
        out = kernel(*folded, is_causal=scores.causal)
    else:
        # One sample after another: the kernels want the same bias for their whole batch.
        samples = zip(*(x.chunk(q.shape[0]) for x in folded), scores.bias, strict=True)
        # A GPU's kernel takes a bias whose last dim is one run of memory; else it is products.
        outs = [
            kernel(*qkv, attn_mask=bias.permute(2, 0, 1)[None].contiguous())
            for *qkv, bias in samples
        ]
        out = torch.cat(outs) if len(outs) > 1 else outs[0]
    return folding.unfold(out)


def _attend_tiles(q: Tensor, k: Tensor, v: Tensor, scores: Scores) -> Tensor:
    """Under a mask, or with sinks, folded (b, Z, S, D)."""
    tiles = scores.tiles(q.shape[2])
    if scores.mask is not None and scores.mask.is_apart and scores.sinks is None:
        return attend_apart(q, k, v, tiles)
    return attend_tiles(q, k, v, scores.sinks, tiles)


def project(k: Tensor, v: Tensor, projection: Tensor) -> list[Tensor]:
    """Folded keys and values (b, Z, S, D) -> (b, Z, P, D); a part of S gives a partial sum."""
    return [matrix @ x for matrix, x in zip(projection.flatten(2), (k, v), strict=True)]


# Keys and values projected to a short sequence


def attend_projected(
    q: Tensor, k: Tensor, v: Tensor, scores: Scores, shard: Shard, comm: Collectives
) -> Tensor:
    """Attention along a cut axis to keys and values projected to a short sequence.

    Forward and backward: one all-reduce each of the short keys and values.

    Parameters
    ----------
    q, k, v : (B, *axes, Z, D), this rank's part along ``shard.dim``
    scores : with the whole projection (2, P, *attended lengths)
    shard : how an attended dim is cut
    comm : of the ranks that share it

    Returns
    -------
    (B, *axes, Z, D), this rank's part
    """
    assert scores.projection is not None, "an attention without projection has nothing to sum"
    # (2, P, *attended lengths): the columns of this rank's positions
    mine = comm.take(scores.projection, shard.along(2 + scores.dims.index(shard.dim)))
    folding = Folding.of(q.shape, scores.dims)
    partial = project(folding.fold(k), folding.fold(v), mine)
    # In one message, end to end: values may be of another size than keys.
    both = comm.all_reduce(torch.cat([x.flatten() for x in partial]))
    parts = both.split([x.numel() for x in partial])
    short_k, short_v = (x.view(like.shape) for x, like in zip(parts, partial, strict=True))
    return folding.unfold(kernel(folding.fold(q), short_k, short_v))


def projected_traffic(attention: Attention, workload: Workload, ranks: int) -> Traffic:
    """Transfers of ``attend_projected`` in forward and in backward."""
    assert attention.projection, "an attention without projection has nothing to sum"
    short = workload.key_value_bytes // workload.length(attention) * attention.projection
    return [Transfer.all_reduce(short, ranks)], [Transfer.all_reduce(short, ranks)]


# Attention to text that every rank holds whole

PIECE = 1024
"""The fewest queries that the kernel gets as one sample, if there are so many."""
SHORTEST = 256
"""Queries of a sample that lie apart in memory are copied before they make shorter pieces."""
LONGER = 8
"""The least length of a piece over that of the text, whose whole gradient each piece has."""


def cross_attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of every position of ``q`` (B, *axes, Z, D) to all of k, v (B, L, Z, D)."""
    # As it lies: a time-sharded q is (T, B, S, Z, D) in memory. Dims inside the sample's are its
    # queries in one piece of memory; dims outside it are batch to the kernel, like samples.
    longer = LONGER * k.shape[1]
    order = memory_order(q, 2)
    sample = order.index(0)
    if math.prod([q.shape[dim] for dim in order[sample + 1 : -2]]) < max(SHORTEST, longer):
        order, sample = [0, *(dim for dim in order if dim)], 0  # else pieces would be short
    ordered = q.permute(order)
    flat = ordered.flatten(sample + 1, -3)
    *batch, queries = flat.shape[:-2]
    count = pieces(queries, max(PIECE, longer))
    cut = flat.unflatten(-3, (count, queries // count)).flatten(0, sample + 1)
    keys, values = (
        x[:, None].expand(*batch, count, *x.shape[1:]).flatten(0, sample + 1) for x in (k, v)
    )
    out = kernel(*(x.transpose(1, 2) for x in (cut, keys, values)))
    return out.transpose(1, 2).reshape(ordered.shape).permute(undone(order))


@cache
def pieces(queries: int, least: int) -> int:
    """The number of equal pieces of at least ``least`` queries; 1 where no divisor gives such."""
    return next(count for count in range(max(1, queries // least), 0, -1) if queries % count == 0)
