"""Switches that are waited for later, in forward and in backward: whole ones, and by chunks.

A ``Flight`` is started, and waited for once its tensors are wanted. In backward its gradients are
under way from where it was waited for to where it was started.

A ``SwitchInChunks`` sends each chunk of a tensor as soon as it is computed. What comes before a
switch takes each position by itself (an mlp): so it takes some at a time, and while one chunk is
under way the next is computed. In backward the gradient of one chunk is under way while another's
is taken further. The bytes are those of the switch.

Two dims take part, the one that is outermost in memory and an inner one; N ranks, c positions:

    the outermost becomes whole   chunk (c, ..., inner) of a rank's positions -> whole (N, c, ...)
    the outermost is cut          chunk (N, c, ...), of each rank's positions -> (c, ..., inner)

Either is the other's backward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from spbench.comm.compiler import never_compiled
from spbench.comm.deferred import Deferred
from spbench.comm.packing import Cut, resized
from spbench.comm.pending import Pending
from spbench.comm.transport import Transport
from spbench.workload.sharding import Shard, shard_sizes

Move = Callable[[Sequence[Tensor]], Pending[list[Tensor]]]
"""Starts to send tensors."""


@final
class Flight:
    """Tensors of a switch under way."""

    def __init__(self, there: Move | None, back: Move | None, xs: Sequence[Tensor]) -> None:
        """``there``, ``back``: None, they have nowhere to go."""
        self.there, self.back = there, back
        self.pending: Pending[list[Tensor]] | None = None
        self._arriving = tuple(xs) if there is None else _Begin.apply(self, *xs)

    @never_compiled
    def wait(self) -> tuple[Tensor, ...]:
        """What arrived."""
        # Their graph holds this object: kept here they would hold each other.
        arriving, self._arriving = self._arriving, ()
        return arriving if self.there is None else _End.apply(self, *arriving)

    def take(self) -> list[Tensor]:
        """What is under way, once it is there; from now on it is not this object's."""
        pending, self.pending = self.pending, None
        assert pending is not None, "it is waited for once each way"
        return pending.wait()


class _Begin(torch.autograd.Function):
    """Posts what is sent. What it gives is not there before ``_End`` has waited for it."""

    @staticmethod
    def forward(ctx: Any, flight: Flight, *xs: Tensor) -> tuple[Tensor, ...]:
        ctx.flight = flight
        assert flight.there is not None, "what stays is not under way"
        flight.pending = pending = flight.there(xs)
        return tuple(pending.arriving)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor | None, ...]:
        return None, *ctx.flight.take()


class _End(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, flight: Flight, *arriving: Tensor) -> tuple[Tensor, ...]:
        ctx.flight = flight
        flight.take()
        return tuple(x.view_as(x) for x in arriving)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        # Those of ``arriving`` stand for what is sent; _Begin has the gradients that come of it.
        ctx.flight.pending = ctx.flight.back(grads)
        return None, *grads


def can_be_in_chunks(before: Shard, after: Shard, outermost: int, chunks: int) -> bool:
    """Whether a switch can leave in so many chunks: among several ranks both dims are cut evenly,
    and each has as many positions of the outermost one."""
    held = (before if outermost == before.dim else after).sizes[0]
    are_even = before.is_even and after.is_even
    return are_even and len(before.sizes) > 1 and held >= chunks > 1


@final
class SwitchInChunks:
    """A switch under way: of one forward, and of its backward."""

    def __init__(
        self,
        transport: Transport,
        deferred: Deferred,
        before: Shard,
        after: Shard,
        outermost: int,
        chunks: int,
    ) -> None:
        """``outermost``: the dim of the two that is outermost in memory; each is cut evenly.

        Parameters
        ----------
        transport
            The ranks that switch.
        deferred
            Work that is done while a chunk is waited for.
        before, after
            How the tensor is cut, and how it is to be.
        outermost
            The dim of the two that lies outermost in memory.
        chunks
            In how many chunks it leaves.
        """
        self._transport, self._deferred, self.outermost = transport, deferred, outermost
        self.becomes_whole = outermost == before.dim
        """Whether the outermost dim is cut before, and whole behind it."""
        own, self._inner = (before, after) if self.becomes_whole else (after, before)
        self._held, self.ranks = own.sizes[0], transport.size
        self._each = Shard.of_sizes(0, (1,) * transport.size)  # of (N, ...) one to each rank
        # Dims before the outermost one move one place in when that one comes to the front, and all
        # of them one more where ranks have a dim of their own.
        self._dim = self._inner.dim + (2 if self._inner.dim < outermost else 1)
        sizes = shard_sizes(self._held, chunks)
        self._chunks = [(sum(sizes[:i]), size) for i, size in enumerate(sizes)]
        self._leaving: list[Tensor] = []
        self._there: list[Pending[Tensor]] = []
        self._back: dict[int, Pending[Tensor]] = {}
        """Gradients under way, by chunk."""
        self._whole: Tensor | None = None

    @never_compiled
    def parts(self, x: Tensor) -> Sequence[Tensor]:
        """The chunks of ``x``, in order, each with as many of every rank's positions."""
        parts: Sequence[Tensor] = _Parts.apply(x, self, [size for _, size in self._chunks])
        return parts

    @never_compiled
    def leave(self, y: Tensor) -> None:
        """The next chunk is computed, and goes off."""
        self._leaving.append(_Leave.apply(y, self, len(self._leaving)))

    @never_compiled
    def arrived(self) -> Tensor:
        """All chunks, where they belong."""
        whole: Tensor = _Arrive.apply(self, *self._leaving)
        return whole

    def start_there(self, y: Tensor, number: int) -> None:
        """Sends a chunk."""
        wire = y.movedim(self.outermost, 0)
        if self.becomes_whole:
            if self._whole is None:
                self._whole = self._empty_whole(wire)
            self._there.append(self._to_whole(wire, self._whole, number))
        else:
            if self._whole is None:  # here it is this rank's part
                shape = resized(wire.shape, 0, self._held)
                whole = resized(shape, self._dim - 1, self._inner.length)
                self._whole = self._transport.empty(wire, whole)
            first, size = self._chunks[number]
            into = self._whole.narrow(0, first, size)
            self._there.append(self._to_parts(wire.unflatten(0, (-1, size)), into))

    def wait_there(self) -> Tensor:
        """What came, with its dims as the model has them."""
        for pending in self._there:
            pending.wait()
        whole, self._whole = self._whole, None
        assert whole is not None, "a chunk has left before"
        self._there, self._leaving = [], []
        return whole.movedim(0, self.outermost)

    def start_back(self, grad: Tensor) -> None:
        """Sends the gradients of all chunks: the last chunk's first, as backward takes them."""
        wire = grad.movedim(self.outermost, 0)
        for number in reversed(range(len(self._chunks))):
            first, size = self._chunks[number]
            if self.becomes_whole:
                shape = resized(wire.shape, 0, size)
                into = self._transport.empty(
                    wire, resized(shape, self._dim - 1, self._inner.length)
                )
                parts = wire.unflatten(0, (-1, self._held)).narrow(1, first, size)
                self._back[number] = self._to_parts(parts, into)
            else:
                local = wire.narrow(0, first, size)
                whole = self._empty_whole(local, size)
                self._back[number] = self._to_whole(local, whole, None)

    def wait_back(self, number: int) -> Tensor:
        """The gradient of a chunk, with its dims as the model has them."""
        return self._back.pop(number).wait().movedim(0, self.outermost)

    def _empty_whole(self, local: Tensor, held: int | None = None) -> Tensor:
        """Unset memory for so many positions of every rank."""
        shape = resized(local.shape, 0, self.ranks * (held or self._held))
        shape = resized(shape, self._dim - 1, self._inner.sizes[0])
        return self._transport.empty(local, shape)

    def _to_whole(self, local: Tensor, whole: Tensor, number: int | None) -> Pending[Tensor]:
        """(c, ..., inner) goes to all ranks; theirs come into their places of ``whole``."""
        places = whole.unflatten(0, (self.ranks, -1))
        if number is not None:
            places = places.narrow(1, *self._chunks[number])
        arriving, leaving = Cut(places, 0, self._each), Cut(local[None], self._dim, self._inner)
        handle = self._transport.all_to_all([arriving], [leaving])
        return Pending(handle, whole, self._deferred)

    def _to_parts(self, parts: Tensor, into: Tensor) -> Pending[Tensor]:
        """(N, c, ...) goes to the ranks, and becomes their (c, ..., inner)."""
        arriving, leaving = Cut(into[None], self._dim, self._inner), Cut(parts, 0, self._each)
        handle = self._transport.all_to_all([arriving], [leaving])
        return Pending(handle, into, self._deferred)


class _Parts(torch.autograd.Function):
    """Chunks of a tensor, whose gradients are joined by one copy."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, switch: SwitchInChunks, sizes: Sequence[int]
    ) -> tuple[Tensor, ...]:
        ctx.switch = switch
        wire = x.movedim(switch.outermost, 0)
        return tuple(part.movedim(0, switch.outermost) for part in _chunks(wire, switch, sizes))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        switch = ctx.switch
        wires = [grad.movedim(switch.outermost, 0) for grad in grads]
        if not switch.becomes_whole:
            wires = [wire.unflatten(0, (switch.ranks, -1)) for wire in wires]
            return torch.cat(wires, 1).flatten(0, 1).movedim(0, switch.outermost), None, None
        return torch.cat(wires).movedim(0, switch.outermost), None, None


def _chunks(wire: Tensor, switch: SwitchInChunks, sizes: Sequence[int]) -> Iterator[Tensor]:
    if switch.becomes_whole:
        yield from wire.split(list(sizes))
    else:
        # Of the positions that go to each rank some: (N, c, ...), which lie apart in memory.
        blocks = wire.unflatten(0, (switch.ranks, -1))
        yield from (block.flatten(0, 1) for block in blocks.split(list(sizes), 1))


class _Leave(torch.autograd.Function):
    """A chunk goes off. What it gives is no number: it ties the chunk to what arrives."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, switch: SwitchInChunks, number: int) -> Tensor:
        ctx.how = switch, number
        switch.start_there(y, number)
        return y.new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, None, None]:
        switch, number = ctx.how
        return switch.wait_back(number), None, None


class _Arrive(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, switch: SwitchInChunks, *ties: Tensor) -> Tensor:
        ctx.switch, ctx.ties = switch, len(ties)
        return switch.wait_there()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        ctx.switch.start_back(grad)
        return None, *(grad.new_zeros(()) for _ in range(ctx.ties))
