"""Packs parts of tensors into buffers that can be sent, and unpacks them where they arrive.

NCCL takes one flat buffer for all ranks. gloo takes messages: long runs of memory are sent from
where they lie, short ones are packed into one message for each rank. Parts that already lie one
behind the other are a flat buffer and are not copied, so with the sharded axis outermost a switch
packs or unpacks, never both. Even shards take one strided copy for each tensor, whatever the number
of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, product

from torch import Tensor

Parts = Sequence[Tensor]
Empty = Callable[[Tensor, Sequence[int]], Tensor]
"""Makes an unset tensor like another, of a given shape."""

MIN_MESSAGE_BYTES = 64 * 2**10
"""Shorter runs of memory are packed: a message costs as much as copying some ten KiB."""


def as_flat(parts: Parts) -> Tensor | None:
    """``parts`` as one flat view, if they lie one behind the other in one storage; else None.

    Addresses alone do not show it: allocators may put separate tensors side by side.
    """
    at, storage = parts[0].data_ptr(), parts[0].untyped_storage().data_ptr()
    for part in parts:
        follows = part.is_contiguous() and part.data_ptr() == at
        if not follows or part.untyped_storage().data_ptr() != storage:
            return None
        at += part.nbytes
    return parts[0].as_strided((sum(part.numel() for part in parts),), (1,))


def pack(by_rank: Sequence[Parts]) -> Tensor:
    """A flat tensor of every rank's parts, in order; a copy unless they lie in this order."""
    flat = as_flat([*chain.from_iterable(by_rank)])
    if flat is None:
        flat = by_rank[0][0].new_empty(_numel(by_rank))
        for view, part in _pairs(flat, by_rank):
            view.copy_(part)
    return flat


def unpacked(
    by_rank: Sequence[Parts], empty: Empty = Tensor.new_empty
) -> tuple[Tensor, Callable[[], None]]:
    """A flat tensor to receive into, and the call that copies it to the parts afterwards."""
    flat = as_flat([*chain.from_iterable(by_rank)])
    if flat is not None:
        return flat, lambda: None
    buffer = empty(by_rank[0][0], (_numel(by_rank),))

    def unpack() -> None:
        for view, part in _pairs(buffer, by_rank):
            part.copy_(view)

    return buffer, unpack


def outgoing(parts: Parts, run_dim: int) -> Iterator[Tensor]:
    """Yields the messages to one rank: long runs where they lie, the rest packed into one.

    From dim ``run_dim`` on, each part is contiguous in the tensor that it is a view of.
    """
    runs, short = _runs_and_short_parts(parts, run_dim)
    yield from (run.contiguous() for run in runs)
    if short:
        yield pack([short])


def incoming(parts: Parts, run_dim: int) -> tuple[list[Tensor], Callable[[], None]]:
    """Tensors to receive one rank's messages into, and the call that unpacks the last of them."""
    runs, short = _runs_and_short_parts(parts, run_dim)
    if not short:
        return runs, lambda: None
    flat, unpack = unpacked([short])
    return [*runs, flat], unpack


def _runs_and_short_parts(parts: Parts, run_dim: int) -> tuple[list[Tensor], list[Tensor]]:
    """Long runs of memory, and the parts that have none. Shapes alone decide, so that the sender
    and the receiver decide alike."""
    runs: list[Tensor] = []
    short: list[Tensor] = []
    for part in parts:
        if math.prod(part.shape[run_dim:]) * part.element_size() < MIN_MESSAGE_BYTES:
            short.append(part)
        else:
            indices = product(*(range(length) for length in part.shape[:run_dim]))
            runs += [part[index] for index in indices]
    return runs, short


def _numel(by_rank: Sequence[Parts]) -> int:
    return sum(part.numel() for part in chain.from_iterable(by_rank))


def _pairs(flat: Tensor, by_rank: Sequence[Parts]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields views of ``flat``, each with the part or stack of parts that belongs there."""
    at = 0
    of_tensors = list(zip(*by_rank, strict=True))
    stacks = [stack for parts in of_tensors if (stack := _stacked(parts)) is not None]
    if len(stacks) == len(of_tensors):
        rows = flat.view(len(by_rank), -1)
        for stack in stacks:
            size = math.prod(stack.shape[1:])
            yield rows.narrow(1, at, size).unflatten(1, stack.shape[1:]), stack
            at += size
        return
    for part in chain.from_iterable(by_rank):
        yield flat.narrow(0, at, part.numel()).view(part.shape), part
        at += part.numel()


def _stacked(parts: Parts) -> Tensor | None:
    """One view (ranks, *part) of equal and equally spaced parts of one tensor; or None."""
    first = parts[0]
    starts = [part.storage_offset() for part in parts]
    gap = starts[1] - starts[0] if len(parts) > 1 else 0
    alike = all(
        part.shape == first.shape
        and part.stride() == first.stride()
        and part.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        and start == starts[0] + i * gap
        for i, (part, start) in enumerate(zip(parts, starts, strict=True))
    )
    if not alike or gap < 0:
        return None
    return first.as_strided((len(parts), *first.shape), (gap, *first.stride()))
