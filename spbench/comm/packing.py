"""Packs parts of tensors into buffers that can be sent, and unpacks them where they arrive.

NCCL takes one flat buffer for all ranks. gloo takes messages: long runs of memory are sent from
where they lie, short ones are packed into one message for each rank. A tensor that is cut along its
outermost dim is a flat buffer and is not copied, so with the sharded axis outermost a switch packs
or unpacks, never both. Even shards take one strided copy for each tensor, and the same work on the
host whatever the number of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
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
    """A tensor, of which each rank is to get, or has sent, the part that ``shard`` says."""

    tensor: Tensor
    shard: Shard

    def part(self, rank: int) -> Tensor:
        """The part of ``rank``, a view."""
        return self.tensor.narrow(self.shard.dim, self.shard.offset(rank), self.shard.sizes[rank])

    def numel(self, rank: int) -> int:
        """Elements of the part of ``rank``."""
        return self.tensor.numel() * self.shard.sizes[rank] // max(1, self.shard.length)

    def others_bytes(self, rank: int) -> int:
        """Bytes of all parts but that of ``rank``."""
        return (self.tensor.numel() - self.numel(rank)) * self.tensor.element_size()

    @property
    def stack(self) -> Tensor:
        """Even parts as one view, (ranks, *part)."""
        ranks = len(self.shard.sizes)
        return self.tensor.unflatten(self.shard.dim, (ranks, -1)).movedim(self.shard.dim, 0)

    @property
    def flat(self) -> Tensor | None:
        """A flat view with one part behind the other, if they lie so in memory."""
        is_outermost = math.prod(self.tensor.shape[: self.shard.dim]) == 1
        return self.tensor.view(-1) if is_outermost and self.tensor.is_contiguous() else None


Cuts = Sequence[Cut]
"""Tensors that travel together, each cut between the same ranks."""
Parts = Sequence[Tensor]
"""What travels together between two ranks."""


def by_rank(cuts: Cuts) -> list[Parts]:
    """The parts of each rank."""
    ranks = range(len(cuts[0].shard.sizes))
    return [[cut.part(rank) for cut in cuts] for rank in ranks]


def pack(cuts: Cuts) -> Tensor:
    """A flat tensor of every rank's parts, in order; a copy unless they lie in this order."""
    flat = cuts[0].flat if len(cuts) == 1 else None
    if flat is None:
        flat = cuts[0].tensor.new_empty(_numel(cuts))
        for view, part in _pairs(flat, cuts):
            view.copy_(part)
    return flat


def unpacked(cuts: Cuts, empty: Empty = Tensor.new_empty) -> tuple[Tensor, Callable[[], None]]:
    """A flat tensor to receive into, and the call that copies it to the parts afterwards."""
    flat = cuts[0].flat if len(cuts) == 1 else None
    if flat is not None:
        return flat, lambda: None
    buffer = empty(cuts[0].tensor, (_numel(cuts),))

    def unpack() -> None:
        for view, part in _pairs(buffer, cuts):
            part.copy_(view)

    return buffer, unpack


def splits(cuts: Cuts) -> list[int] | None:
    """Elements of each rank in a flat buffer; None: the same for all."""
    if all(cut.shard.is_even for cut in cuts):
        return None
    ranks = range(len(cuts[0].shard.sizes))
    return [sum(cut.numel(rank) for cut in cuts) for rank in ranks]


def outgoing(parts: Parts, run_dim: int) -> Iterator[Tensor]:
    """Yields the messages to one rank: long runs where they lie, the rest packed into one.

    From dim ``run_dim`` on, each part is contiguous in the tensor that it is a view of.
    """
    runs, short = _runs_and_short_parts(parts, run_dim)
    yield from (run.contiguous() for run in runs)
    if short:
        flat = [part.reshape(-1) for part in short]
        yield torch.cat(flat) if len(flat) > 1 else flat[0]


def incoming(parts: Parts, run_dim: int) -> tuple[list[Tensor], Callable[[], None]]:
    """Tensors to receive one rank's messages into, and the call that unpacks the last of them."""
    runs, short = _runs_and_short_parts(parts, run_dim)
    if not short:
        return runs, lambda: None
    if len(short) == 1 and short[0].is_contiguous():
        return [*runs, short[0].view(-1)], lambda: None
    message = short[0].new_empty(sum(part.numel() for part in short))

    def unpack() -> None:
        for part, received in zip(short, message.split([x.numel() for x in short]), strict=True):
            part.copy_(received.view(part.shape))

    return [*runs, message], unpack


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


def _numel(cuts: Cuts) -> int:
    return sum(cut.tensor.numel() for cut in cuts)


def _pairs(flat: Tensor, cuts: Cuts) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields views of ``flat``, each with the part or stack of parts that belongs there."""
    ranks, at = len(cuts[0].shard.sizes), 0
    if all(cut.shard.is_even for cut in cuts):
        rows = flat.view(ranks, -1)
        for stack in (cut.stack for cut in cuts):
            size = math.prod(stack.shape[1:])
            yield rows.narrow(1, at, size).unflatten(1, stack.shape[1:]), stack
            at += size
        return
    for part in (cut.part(rank) for rank in range(ranks) for cut in cuts):
        yield flat.narrow(0, at, part.numel()).view(part.shape), part
        at += part.numel()
