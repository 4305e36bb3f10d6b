"""Differentiable collectives over named shards; the only way that a strategy communicates.

Each method's backward is another method of the same object, so the backward pass is counted
by the same line of code.

    forward           backward
    switch a -> b     switch b -> a
    all_gather        reduce_scatter
    reduce_scatter    all_gather

A tensor here is this rank's part of a whole tensor, cut along ``shard.dim`` into
``shard.sizes``. A collective over one rank is right and moves nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from spbench.comm.transport import Handle, Transport
from spbench.workload.shards import Shard


@final
class Pending:
    """A tensor on its way. ``wait`` gives it, once."""

    def __init__(self, handle: Handle, received: Tensor, parts: list[Tensor], dim: int) -> None:
        self._handle, self._received = handle, received
        self._parts, self._dim = parts, dim

    def wait(self) -> Tensor:
        self._handle.wait()
        return _join(self._received, self._parts, self._dim)


@final
class Collectives:
    """The collectives of one group of ranks."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport

    @property
    def rank(self) -> int:
        return self.transport.rank

    @property
    def size(self) -> int:
        return self.transport.size

    def take(self, whole: Tensor, shard: Shard) -> Tensor:
        """This rank's part of a tensor that every rank holds. Moves nothing. A view."""
        return whole.narrow(shard.dim, shard.start(self.rank), shard.sizes[self.rank])

    def switch(self, *xs: Tensor, before: Shard, after: Shard) -> tuple[Tensor, ...]:
        """``before.dim`` becomes whole and ``after.dim`` becomes sharded, in one all-to-all.

        Several tensors, which may differ in their other dims, travel together.
        Forward and backward: each rank sends all that it holds but its own part.
        """
        switched: tuple[Tensor, ...] = _Switch.apply(self, before, after, *xs)
        return switched

    def all_gather(self, x: Tensor, shard: Shard) -> Tensor:
        """Sharded -> whole on every rank. Backward: a reduce-scatter."""
        gathered: Tensor = _AllGather.apply(self, shard, x)
        return gathered

    def reduce_scatter(self, x: Tensor, shard: Shard) -> Tensor:
        """Partial sums of the whole -> their total, sharded. Backward: an all-gather."""
        scattered: Tensor = _ReduceScatter.apply(self, shard, x)
        return scattered

    def all_reduce_(self, x: Tensor) -> Handle:
        """``x`` becomes the sum over the ranks, in place, once waited for. No backward."""
        return self.transport.all_reduce(x)

    def ring(self, x: Tensor, shard: Shard) -> Iterator[tuple[int, Tensor]]:
        """Every rank's block of ``x``, this rank's first: (owner, block). No backward.

        The next block is under way while the caller works on the one at hand.
        """
        block = x.contiguous()
        for step in range(self.size):
            owner = (self.rank - step) % self.size
            following = None
            if step < self.size - 1:
                following = _with_length(block, shard.dim, shard.sizes[(owner - 1) % self.size])
                handle = self.transport.shift(following.view(-1), block.view(-1))
            yield owner, block
            if following is not None:
                handle.wait()
                block = following

    def start_all_gather(self, x: Tensor, shard: Shard) -> Pending:
        """An all-gather to be waited for later. No backward."""
        x = x.contiguous()
        shapes = [_resized(x.shape, shard.dim, length) for length in shard.sizes]
        received, parts = _flat(x, shapes)
        counts = tuple(part.numel() for part in parts)
        handle = self.transport.all_gather(received, x.view(-1), counts)
        return Pending(handle, received, parts, shard.dim)

    def start_reduce_scatter(self, x: Tensor, shard: Shard) -> Pending:
        """A reduce-scatter to be waited for later. No backward."""
        sent, counts = _pack([(x, shard)])
        received = _with_length(x, shard.dim, shard.sizes[self.rank])
        handle = self.transport.reduce_scatter(received.view(-1), sent, counts)
        return Pending(handle, received.view(-1), [received], shard.dim)

    def exchange(self, xs: Sequence[Tensor], before: Shard, after: Shard) -> list[Tensor]:
        """``switch`` without its gradient."""
        sent, sent_counts = _pack([(x, after) for x in xs])
        mine = after.sizes[self.rank]
        shapes = [
            _resized(_resized(x.shape, after.dim, mine), before.dim, length)
            for length in before.sizes
            for x in xs
        ]
        received, parts = _flat(xs[0], shapes)
        received_counts = tuple(
            sum(part.numel() for part in parts[first : first + len(xs)])
            for first in range(0, len(parts), len(xs))
        )
        self.transport.all_to_all(received, sent, received_counts, sent_counts).wait()
        return [_join(received, parts[i :: len(xs)], before.dim) for i in range(len(xs))]


def _resized(shape: Sequence[int], dim: int, length: int) -> list[int]:
    return [*shape[:dim], length, *shape[dim + 1 :]]


def _with_length(like: Tensor, dim: int, length: int) -> Tensor:
    return like.new_empty(_resized(like.shape, dim, length))


def _flat(like: Tensor, shapes: list[list[int]]) -> tuple[Tensor, list[Tensor]]:
    """One flat buffer, and a view of it for each shape, one after the other."""
    counts = [math.prod(shape) for shape in shapes]
    buffer = like.new_empty(sum(counts))
    parts = [part.view(shape) for part, shape in zip(buffer.split(counts), shapes, strict=True)]
    return buffer, parts


def _is_outermost(x: Tensor, dim: int) -> bool:
    return x.is_contiguous() and math.prod(x.shape[:dim]) == 1


def _pack(xs: list[tuple[Tensor, Shard]]) -> tuple[Tensor, tuple[int, ...]]:
    """A flat buffer with each rank's parts together; no copy if they already lie so."""
    pieces = [x.split(list(shard.sizes), shard.dim) for x, shard in xs]
    counts = tuple(sum(part.numel() for part in parts) for parts in zip(*pieces, strict=True))
    if len(xs) == 1 and _is_outermost(xs[0][0], xs[0][1].dim):
        return xs[0][0].view(-1), counts
    by_rank = [part for parts in zip(*pieces, strict=True) for part in parts]
    buffer, targets = _flat(xs[0][0], [list(part.shape) for part in by_rank])
    for target, part in zip(targets, by_rank, strict=True):
        target.copy_(part)
    return buffer, counts


def _join(received: Tensor, parts: list[Tensor], dim: int) -> Tensor:
    """The parts side by side along ``dim``; no copy if the flat buffer already is that."""
    whole = _resized(parts[0].shape, dim, sum(part.shape[dim] for part in parts))
    if math.prod(whole[:dim]) == 1 and received.numel() == math.prod(whole):
        return received.view(whole)
    return torch.cat(parts, dim)


class _Switch(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, comm: Collectives, before: Shard, after: Shard, *xs: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.comm, ctx.before, ctx.after = comm, before, after
        return tuple(comm.exchange(xs, before, after))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        return None, None, None, *ctx.comm.exchange(grads, ctx.after, ctx.before)


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, comm: Collectives, shard: Shard, x: Tensor) -> Tensor:
        ctx.comm, ctx.shard = comm, shard
        return comm.start_all_gather(x, shard).wait()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        return None, None, ctx.comm.start_reduce_scatter(grad, ctx.shard).wait()


class _ReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, comm: Collectives, shard: Shard, x: Tensor) -> Tensor:
        ctx.comm, ctx.shard = comm, shard
        return comm.start_reduce_scatter(x, shard).wait()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        return None, None, ctx.comm.start_all_gather(grad, ctx.shard).wait()
