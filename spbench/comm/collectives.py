"""Differentiable collectives over named shards; the only way that a strategy communicates.

Each method's backward is another method of the same object. Both hand their messages to a
``Transport``, which counts them (``comm/transport.py``) and, on NCCL or gloo, sends them
(``comm/nccl_gloo.py``).

    forward           backward
    switch a -> b     switch b -> a
    all_gather        reduce_scatter
    reduce_scatter    all_gather
    all_reduce        all_reduce

A tensor here is this rank's part of a whole tensor, cut along ``shard.dim`` into
``shard.sizes``. A collective over one rank returns what it is given, and copies nothing.

Code that ``torch.compile`` compiles may call them: they run as they are, between two of its graphs.

A message has the dim that is whole on one side first. A tensor with that dim outermost in memory is
sent, or received, where it lies: so does all that a collective gives. One all-to-all makes a dim
whole and cuts others, or undoes it, with as few copies as can be:

    make_whole    packed once along the inner dim; arrives where it lies, outermost dim first
    make_cut      sent from where it lies, outermost dim first; unpacked once along the inner dim
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from spbench.comm.compiler import never_compiled
from spbench.comm.deferred import Deferred
from spbench.comm.packing import Cut, memory_order, resized, undone
from spbench.comm.pending import Gathering, Pending, RingBlocks, are_worth_it
from spbench.comm.started_switches import Flight, Move, SwitchInChunks
from spbench.comm.transport import DONE, Fill, Handle, Transport, behind, is_filled
from spbench.workload.mesh import Mesh
from spbench.workload.sharding import Shard


def make_whole(
    transport: Transport, xs: Sequence[Tensor], outermost: Shard, others: Sequence[Shard]
) -> tuple[Handle, list[Tensor]]:
    """``outermost.dim`` becomes whole, and each tensor is cut as its shard of ``others`` says.

    Parameters
    ----------
    transport
        The ranks among which parts go.
    xs
        This rank's parts along ``outermost.dim``, of one dtype.
    outermost
        How that dim is cut now; in the message it comes first.
    others
        How each of ``xs`` is cut afterwards, all along one dim.

    Returns
    -------
    Handle, list of Tensor
        The transfer, and views of the one tensor that arrives.
    """
    dim = _inner(outermost, others[0])
    wires = [x.movedim(outermost.dim, 0) for x in xs]
    widths = [shard.sizes[transport.rank] for shard in others]
    shape = resized(wires[0].shape, 0, outermost.length)
    # q and k travel together, their axis cut in two: (T/2, S) of each arrive as one (T, S/2 + S/2),
    # of which both are views.
    whole = transport.empty(xs[0], resized(shape, dim, sum(widths)))
    leaving = [Cut(x, dim, shard) for x, shard in zip(wires, others, strict=True)]
    handle = transport.all_to_all([Cut(whole, 0, outermost)], leaving)
    return handle, [part.movedim(0, outermost.dim) for part in whole.split(widths, dim)]


def make_cut(
    transport: Transport,
    xs: Sequence[Tensor],
    outermost: Shard,
    others: Sequence[Shard],
    order: Sequence[int] | None = None,
) -> tuple[Handle, list[Tensor]]:
    """``make_whole`` undone.

    Parameters
    ----------
    transport
        The ranks among which parts go.
    xs
        Parts with ``outermost.dim`` whole, cut as ``others`` say.
    outermost
        How that dim is cut afterwards.
    others
        How each of ``xs`` is cut now, all along one dim, which becomes whole.
    order
        The dims of the results as they are to lie in memory, outermost first; None: as in the
        message.

    Returns
    -------
    Handle, list of Tensor
        The transfer, and this rank's parts along ``outermost.dim``.
    """
    dim = _inner(outermost, others[0])
    wires = [x.movedim(outermost.dim, 0) for x in xs]
    shapes = [
        resized(resized(x.shape, 0, outermost.sizes[transport.rank]), dim, other.length)
        for x, other in zip(wires, others, strict=True)
    ]
    if len(xs) > 1 and all(other == others[0] for other in others):
        # Side by side in front of the inner dim, (T/N, ..., 3, Z, D), they are unpacked by one
        # copy; and their join, which a projection's backward wants, is a view.
        whole = transport.empty(xs[0], [*shapes[0][:dim], len(xs), *shapes[0][dim:]])
        arriving = [Cut(whole, dim + 1, others[0])]
        leaving = [Cut(x.unsqueeze(dim), 0, outermost, join_dim=dim) for x in wires]
        outs: Sequence[Tensor] = whole.unbind(dim)
    else:
        leading = range(wires[0].ndim) if order is None else order
        # made with their dims in memory's order, and seen in the message's
        outs = [
            transport.empty(xs[0], [shape[d] for d in leading]).permute(undone(leading))
            for shape in shapes
        ]
        arriving = [Cut(out, dim, other) for out, other in zip(outs, others, strict=True)]
        leaving = [Cut(x, 0, outermost) for x in wires]
    handle = transport.all_to_all(arriving, leaving)
    return handle, [out.movedim(0, outermost.dim) for out in outs]


def _inner(outermost: Shard, other: Shard) -> int:
    """The dim of ``other`` in a message."""
    # Dims before the outermost move one place in when that one comes to the front.
    return other.dim + 1 if other.dim < outermost.dim else other.dim


Arriving = TypeVar("Arriving")
Start = Callable[[Tensor, Shard], Pending[Tensor] | Gathering]


@final
class Collectives:
    """The collectives of one group of ranks."""

    def __init__(
        self, transport: Transport, mesh: Mesh | None = None, whole: "Collectives | None" = None
    ) -> None:
        """``whole``: those of all ranks, of which these are a group; None: these are all."""
        self.transport, self._whole = transport, whole
        self.deferred: Deferred = Deferred() if whole is None else whole.deferred
        """What may be done while something is under way; the same for all groups of a rank."""
        self.mesh = mesh or Mesh.of({"sequence": transport.size})
        self.rank, self.size = transport.rank, transport.size

    def along(self, *axes: str) -> "Collectives":
        """The collectives of this rank's group of these axes, whose mesh has these alone."""
        # The one axis of a mesh, or all of them: the group is all these ranks.
        if len(self.mesh.axes) in (1, len(axes)):
            return self
        # Groups are asked of all ranks, so that one that is asked for twice is made once.
        whole = self._whole or self
        part = whole.transport.along("+".join(axes), whole.mesh.groups(*axes))
        return Collectives(part, self.mesh.only(*axes), whole)

    def take(self, whole: Tensor, shard: Shard) -> Tensor:
        """This rank's part of a tensor that every rank holds. Moves nothing.

        A view where the rank holds one run of positions, else a copy.
        """
        for cut in shard.cuts:
            parts = [whole.narrow(cut.dim, *run) for run in cut.runs[self.rank]]
            whole = parts[0] if len(parts) == 1 else torch.cat(parts, cut.dim)
        return whole

    @never_compiled
    def switch(
        self,
        *xs: Tensor,
        before: Shard,
        after: Shard | Sequence[Shard],
        outermost: int | None = None,
    ) -> tuple[Tensor, ...]:
        """``before.dim`` becomes whole, in rank order, and ``after.dim`` becomes sharded.

        Forward and backward each send all but the rank's own part, in one all-to-all.

        Parameters
        ----------
        xs : this rank's parts along ``before.dim``, which travel together
        before : how they are cut
        after : how they are to be cut; one for each where their lengths along its dim differ
        outermost : the dim of the two that is outermost in the message, ``before.dim`` by default:
            a tensor that is outermost in memory there, on the side where it is whole, is not copied

        Returns
        -------
        this rank's parts along ``after.dim``
        """
        there, back = self._ways(xs, before, after, outermost)
        return self._differentiable(there, back, xs)

    @never_compiled
    def start_switch(
        self,
        *xs: Tensor,
        before: Shard,
        after: Shard | Sequence[Shard],
        outermost: int | None = None,
    ) -> Flight:
        """A switch to be waited for later; its backward is under way from the gradient of what was
        waited for to that of ``xs``. Parameters as of ``switch``."""
        if self.size == 1:
            return Flight(None, None, xs)
        return Flight(*self._ways(xs, before, after, outermost), xs)

    def _ways(
        self,
        xs: Sequence[Tensor],
        before: Shard,
        after: Shard | Sequence[Shard],
        outermost: int | None,
    ) -> tuple[Move, Move]:
        """How a switch goes there, and how its gradients go back; parameters as of ``switch``."""
        # k and v may have fewer heads than q: then each is cut by a shard of its own.
        others = [after] * len(xs) if isinstance(after, Shard) else list(after)
        # The message begins with the dim that becomes whole: forward receives it where it lies.
        if outermost in (None, before.dim):
            order = memory_order(xs[0].movedim(before.dim, 0)) if len(xs) == 1 else None
            return (
                lambda xs: self.pending(*make_whole(self.transport, xs, before, others)),
                lambda grads: self.pending(*make_cut(self.transport, grads, before, others, order)),
            )
        # It begins with the dim that becomes cut, which forward sends from where it lies.
        (other,) = others
        return (
            lambda xs: self.pending(*make_cut(self.transport, xs, other, [before])),
            lambda grads: self.pending(*make_whole(self.transport, grads, other, [before])),
        )

    def pending(self, handle: Handle, arriving: Arriving) -> Pending[Arriving]:
        """What arrives by a transfer that is under way."""
        return Pending(handle, arriving, self.deferred)

    @never_compiled
    def switch_in_chunks(
        self, before: Shard, after: Shard, outermost: int, chunks: int
    ) -> SwitchInChunks:
        """A switch of a tensor that leaves in chunks, each as soon as it is computed."""
        how = before, after, outermost, chunks
        return SwitchInChunks(self.transport, self.deferred, *how)

    @never_compiled
    def all_gather(self, x: Tensor, shard: Shard) -> Tensor:
        """Sharded -> whole, in rank order, on every rank. Backward: a reduce-scatter."""
        return self._waited(self.start_all_gather, self.start_reduce_scatter, x, shard)

    @never_compiled
    def reduce_scatter(self, x: Tensor, shard: Shard) -> Tensor:
        """Partial sums of the whole -> their total, sharded. Backward: an all-gather."""
        return self._waited(self.start_reduce_scatter, self.start_all_gather, x, shard)

    @never_compiled
    def all_reduce(self, x: Tensor) -> Tensor:
        """Partial sums -> their total on every rank. Backward: an all-reduce."""
        (total,) = self._differentiable(self._total, self._total, [x])
        return total

    def _total(self, xs: Sequence[Tensor]) -> Pending[list[Tensor]]:
        # The sum is made in place, and what autograd has handed over is not ours to overwrite.
        total = xs[0].clone(memory_format=torch.contiguous_format)
        return self.pending(self.all_reduce_(total), [total])

    def _waited(self, there: Start, back: Start, x: Tensor, shard: Shard) -> Tensor:
        def one(start: Start) -> Move:
            return lambda xs: Pending(DONE, [start(xs[0], shard).wait()])

        (moved,) = self._differentiable(one(there), one(back), [x])
        return moved

    def _differentiable(self, there: Move, back: Move, xs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """``there`` moves ``xs``, and ``back`` their gradients; over one rank nothing moves."""
        return tuple(xs) if self.size == 1 else _Differentiable.apply(there, back, *xs)

    @never_compiled
    def all_reduce_(self, x: Tensor) -> Handle:
        """``x`` becomes the sum over the ranks, in place, once waited for. No backward."""
        return DONE if self.size == 1 else self.transport.all_reduce(x)

    @never_compiled
    def ring(self, x: Tensor, shard: Shard) -> Tensor:
        """Sharded -> whole, in rank order: blocks pass from rank to rank. No backward.

        Each is received where it belongs, and sent on. ``shard.dim`` is the outermost in memory.
        """
        return self.start_ring(x, shard).wait()

    @never_compiled
    def start_ring(self, x: Tensor, shard: Shard) -> RingBlocks:
        """A ring whose blocks are to be waited for later, each by itself. No backward."""
        return RingBlocks(self.transport, x, shard, self.deferred)

    @never_compiled
    def start_shift(self, x: Tensor, length: int, by: int = 1) -> Pending[Tensor]:
        """A contiguous ``x`` goes ``by`` ranks on, to the next one by default; what comes is
        ``length`` long. No backward."""
        coming = self.transport.empty(x, resized(x.shape, 0, length))
        return self.pending(self.transport.shift(coming, x, by), coming)

    @never_compiled
    def start_all_gather(self, x: Tensor, shard: Shard, *, lets_go: bool = False) -> Gathering:
        """An all-gather to be waited for later, as a whole or part by part. No backward.

        ``lets_go``: whether ``x`` is sent from its place in the whole, and is free at once.
        """
        mine = x.movedim(shard.dim, 0)
        if self.size == 1:
            return Gathering(DONE, Cut(mine, 0, shard), mine, self.rank)
        cut = Cut(self.transport.empty(x, resized(mine.shape, 0, shard.length)), 0, shard)
        mine = cut.part(self.rank).copy_(mine) if lets_go else mine.contiguous()
        handle = self.transport.all_gather(cut, mine)
        sources = behind(self.rank, self.size) if self.transport.in_parts(x) else ()
        return Gathering(handle, cut, mine, self.rank, sources, self.deferred)

    @never_compiled
    def start_reduce_scatter(
        self, x: Tensor, shard: Shard, fill: Fill = is_filled, least: int = 0
    ) -> Pending[Tensor]:
        """A reduce-scatter to be waited for later. No backward.

        Parameters
        ----------
        x
            The whole, this rank's share of the sum.
        shard
            How the sum is shared out.
        fill
            Sets rows of ``x`` along ``shard.dim``, for a tensor that is not there yet. It is called
            for the part of each rank as that is about to be sent, and for this rank's own at last:
            what is computed last hides the transfers. Where parts leave together, as on NCCL, it is
            called once, for all rows.
        least
            So it is where ranks have fewer vectors than these.

        Returns
        -------
        Pending
            This rank's part of the sum. Until then ``x`` belongs to the transfer.
        """
        whole = x.movedim(shard.dim, 0)
        if self.size == 1:
            fill(slice(0, len(whole)))
            return Pending(DONE, x)
        if not are_worth_it(whole, shard, least):
            fill(slice(0, len(whole)))
            fill = is_filled
        mine = self.transport.empty(x, resized(whole.shape, 0, shard.sizes[self.rank]))
        handle = self.transport.reduce_scatter(mine, Cut(whole, 0, shard), fill)
        return self.pending(handle, mine.movedim(0, shard.dim))


class _Differentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, there: Move, back: Move, *xs: Tensor) -> tuple[Tensor, ...]:
        ctx.back = back
        return tuple(there(xs).wait())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        return None, None, *ctx.back(grads).wait()
