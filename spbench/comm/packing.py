"""Packs parts of tensors into buffers that can be sent, and unpacks them where they arrive.

Tensors come with the dims in the order of the message: the dim that is whole on one side first.
There a tensor is a flat buffer for all ranks and is not copied; on the other side, where it is cut
along an inner dim, it is packed or unpacked once. Tensors that travel together are joined along
that inner dim, so that one tensor arrives, of which they are views.

NCCL takes one flat buffer for all ranks. gloo takes messages: long runs of memory are sent from
where they lie, short ones are packed into one message for each rank. Even shards take the same work
on the host whatever the number of ranks.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import inf
from typing import final

import torch
from torch import Tensor

from spbench.workload.sharding import Shard

Empty = Callable[[Tensor, Sequence[int]], Tensor]
"""Makes an unset tensor like another, of a given shape."""

MIN_MESSAGE_BYTES = 64 * 2**10
"""Shorter runs of memory are packed: a message costs as much as copying some ten KiB."""


@final
@dataclass(frozen=True)
class Cut:
    """A tensor, of which each rank is to get, or has sent, a part along ``dim``."""

    tensor: Tensor
    dim: int
    shard: Shard
    """The part that each rank has; the tensor is cut along ``dim``, not along the shard's."""
    join_dim: int | None = None
    """The dim along which it is joined to what it travels with; None: the one that the tensors are
    cut along on one of the two sides, where the other has dim 0."""

    def part(self, rank: int) -> Tensor:
        """The part of ``rank``, a view."""
        return self.tensor.narrow(self.dim, self.shard.offset(rank), self.shard.sizes[rank])

    def rows(self, rank: int) -> slice:
        """Where along ``dim`` the part of ``rank`` is."""
        first = self.shard.offset(rank)
        return slice(first, first + self.shard.sizes[rank])

    @property
    def all_rows(self) -> slice:
        return slice(0, self.tensor.shape[self.dim])

    def numel(self, rank: int) -> int:
        """Elements of the part of ``rank``."""
        # Rows of all ranks are alike: 12 numbers of 3 rows are 4 a row. An axis may be empty.
        return self.tensor.numel() * self.shard.sizes[rank] // max(1, self.shard.length)

    def others_bytes(self, rank: int) -> int:
        """Bytes of all parts but that of ``rank``."""
        return (self.tensor.numel() - self.numel(rank)) * self.tensor.element_size()

    @property
    def stack(self) -> Tensor:
        """Even parts as one view, (ranks, *part)."""
        sizes = self.shard.sizes
        # (..., N n, ...) -> (..., N, n, ...) -> (N, ..., n, ...): no data moves, only strides
        return self.tensor.unflatten(self.dim, (len(sizes), sizes[0])).movedim(self.dim, 0)

    @property
    def flat(self) -> Tensor | None:
        """A flat view with one part behind the other, if they lie so in memory."""
        # Parts follow each other if no dim before the cut one has more than one place.
        is_outermost = math.prod(self.tensor.shape[: self.dim]) == 1
        return self.tensor.view(-1) if is_outermost and self.tensor.is_contiguous() else None


Cuts = Sequence[Cut]
"""Tensors that travel together, cut along the same dim, their parts joined along it."""
Parts = Sequence[Tensor]
"""What travels together between two ranks, joined along one dim."""


def by_rank(cuts: Cuts) -> list[Parts]:
    """The parts of each rank."""
    return [[cut.part(rank) for cut in cuts] for rank in range(len(cuts[0].shard.sizes))]


def inner_dim(received: Cuts, sent: Cuts) -> int:
    """The dim that parts are joined along, where several travel together."""
    return max(received[0].dim, sent[0].dim) if sent[0].join_dim is None else sent[0].join_dim


def pack(cuts: Cuts, along: int | None = None) -> Tensor:
    """A flat tensor of every rank's parts, in order; a copy unless they lie in this order.

    ``along``: the dim that parts of several tensors are joined along, by default that of the cut.
    """
    flat = cuts[0].flat if len(cuts) == 1 else None
    if flat is None:
        flat = cuts[0].tensor.new_empty(_numel(cuts))
        for target, parts, dim in _joined(flat, cuts, along):
            copy_joined([target], parts, dim)
    return flat


def unpacked(
    cuts: Cuts, empty: Empty = Tensor.new_empty, along: int | None = None
) -> tuple[Tensor, Callable[[], None]]:
    """A flat tensor to receive into, and the call that copies it to the parts afterwards;
    ``along`` as of ``pack``."""
    flat = cuts[0].flat if len(cuts) == 1 else None
    if flat is not None:
        return flat, lambda: None
    buffer = empty(cuts[0].tensor, (_numel(cuts),))

    def unpack() -> None:
        for received, parts, dim in _joined(buffer, cuts, along):
            copy_joined(parts, [received], dim)

    return buffer, unpack


def copy_joined(targets: Parts, sources: Parts, dim: int) -> None:
    """Copies what ``sources`` are, joined along ``dim``, to ``targets``, joined in the same way."""
    # All of them or none: words of one side do not fit numbers of the other.
    every = in_words([*targets, *sources])
    targets, sources = every[: len(targets)], every[len(targets) :]
    if len(targets) == len(sources):
        for target, source in zip(targets, sources, strict=True):
            if not is_same_place(target, source):  # a part that is sent from where it arrives
                target.copy_(source)
    elif len(targets) == 1:
        torch.cat(list(sources), dim, out=targets[0])
    else:
        widths = [target.shape[dim] for target in targets]
        copy_joined(targets, joined(sources, dim).split(widths, dim), dim)


def is_same_place(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors of one shape begin at the same number of the same memory."""
    if one.storage_offset() != other.storage_offset():
        return False
    # Not by address: tensors without data have none.
    return one.untyped_storage()._cdata == other.untyped_storage()._cdata


def in_words(parts: Parts) -> Parts:
    """A GPU's tensors as words of eight bytes, if all rows are made of such: it copies number by
    number what is no single run of memory, in half the time (docs/performance.md, one H200)."""
    for x in parts:
        # Each row must begin and end on a word: four bfloat16 numbers, or two of float32.
        ends = x.shape[-1], x.storage_offset(), *x.stride()[:-1]
        is_apart = any(n * x.element_size() % 8 for n in ends)
        is_cut_off = x.requires_grad and torch.is_grad_enabled()  # integers have no gradient
        if not x.is_cuda or is_apart or is_cut_off or x.stride(-1) != 1:
            return parts
    return [x.view(torch.int64) for x in parts]


def joined(parts: Parts, dim: int) -> Tensor:
    """One tensor of all parts; a copy where there are several."""
    return parts[0] if len(parts) == 1 else torch.cat([*in_words(parts)], dim).view(parts[0].dtype)


def splits(cuts: Cuts) -> list[int] | None:
    """Elements of each rank in a flat buffer; None: the same for all."""
    # A rank that has nothing for anyone does not know whether others do, in unequal parts.
    if all(cut.shard.is_even and cut.shard.length for cut in cuts):
        return None
    return [sum(cut.numel(rank) for cut in cuts) for rank in range(len(cuts[0].shard.sizes))]


def outgoing(parts: Parts, run_dim: int) -> Iterator[Tensor]:
    """Yields the messages to one rank: long runs where they lie, or all in one.

    ``run_dim``: the dim that parts are cut and joined along, on one of the two sides.
    """
    for run in _runs(joined(parts, run_dim), run_dim):
        yield run.contiguous()


def incoming(parts: Parts, run_dim: int) -> tuple[list[Tensor], Callable[[], None]]:
    """Tensors to receive one rank's messages into, and the call that copies them to its parts."""
    whole = parts[0]
    if len(parts) > 1:
        whole = whole.new_empty(_joined_shape(parts, run_dim))
    runs = _runs(whole, run_dim)
    messages = [run if run.is_contiguous() else run.new_empty(run.shape) for run in runs]

    def unpack() -> None:
        for run, message in zip(runs, messages, strict=True):
            if run is not message:
                run.copy_(message)
        if len(parts) > 1:
            copy_joined(parts, [whole], run_dim)

    return messages, unpack


def _runs(part: Tensor, run_dim: int) -> list[Tensor]:
    """Views of its long runs of memory; itself where they are short.

    The shape alone decides, so that the sender and the receiver decide alike.
    """
    if math.prod(part.shape[run_dim:]) * part.element_size() < MIN_MESSAGE_BYTES:
        return [part]
    # a view for each place of the dims before run_dim: (2, 3, 512, D) cut along dim 2 has six
    return [part[index] for index in product(*(range(n) for n in part.shape[:run_dim]))]


def _numel(cuts: Cuts) -> int:
    return sum(cut.tensor.numel() for cut in cuts)


def _joined(
    flat: Tensor, cuts: Cuts, along: int | None
) -> Iterator[tuple[Tensor, list[Tensor], int]]:
    """Yields views of ``flat`` with the parts, or stacks of parts, joined there along a dim."""
    ranks, dim = len(cuts[0].shard.sizes), cuts[0].dim if along is None else along
    if all(cut.shard.is_even for cut in cuts):
        # (N, *part): joined parts of all ranks at once, one dim further in; one copy for all ranks
        stacks = [cut.stack for cut in cuts]
        yield flat.view(_joined_shape(stacks, dim + 1)), stacks, dim + 1
        return
    at = 0
    for rank in range(ranks):
        parts = [cut.part(rank) for cut in cuts]
        shape = _joined_shape(parts, dim)
        yield flat.narrow(0, at, math.prod(shape)).view(shape), parts, dim
        at += math.prod(shape)


def _joined_shape(parts: Parts, dim: int) -> list[int]:
    shape = list(parts[0].shape)
    shape[dim] = sum(part.shape[dim] for part in parts)
    return shape


def memory_order(x: Tensor, features: int = 0) -> list[int]:
    """Dims as they lie in memory, outermost first; the last ``features`` of them stay last."""
    strides, leading = x.stride(), x.ndim - features
    # A dim of one position lies anywhere: its stride says nothing, and a view may change it.
    several = [n > 1 for n in x.shape]
    order = sorted(range(leading), key=lambda dim: -strides[dim] if several[dim] else -inf)
    return [*order, *range(leading, x.ndim)]


def undone(order: Sequence[int]) -> list[int]:
    """The order of dims that undoes a permutation."""
    # Dim d stands at order.index(d); sorting places by the dim that stands there gives just that.
    return sorted(range(len(order)), key=order.__getitem__)


def resized(shape: Sequence[int], dim: int, length: int) -> list[int]:
    """``shape`` with another ``length`` along ``dim``."""
    return [*shape[:dim], length, *shape[dim + 1 :]]
