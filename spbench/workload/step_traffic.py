"""A step's transfers, sublayer by sublayer: the switch to its axis, and its own, back and forth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from spbench.workload.block import Place
from spbench.workload.flops import is_modulated
from spbench.workload.sharding import Sizes, shard_sizes
from spbench.workload.traffic import Traffic, Transfer, switch
from spbench.workload.workload import Workload


@dataclass(frozen=True)
class Move:
    """A sublayer at its place in a block, and the axes that are sharded before and in it."""

    place: Place
    before: str
    axis: str


def moves_along(places: Sequence[Place], layout: Sequence[str]) -> Iterator[Move]:
    """All moves of a layout; the first one is no switch."""
    yield from map(Move, places, (layout[0], *layout), layout)


def held_with_text(workload: Workload, axis: str, sizes: Sizes) -> Sizes:
    """What each rank holds of a self-attention's sequence, with these positions of ``axis``.

    They themselves; with text the tokens of its part, image and text, which is shared out evenly.
    """
    if not workload.text:
        return sizes
    others, text = workload.tokens // workload.axes[axis], shard_sizes(workload.text, len(sizes))
    return tuple(others * n + of_text for n, of_text in zip(sizes, text, strict=True))


def shared_length(workload: Workload, axis: str) -> int:
    """What all ranks together hold of a self-attention's sequence."""
    return workload.all_tokens if workload.text else workload.axes[axis]


def in_a_step(
    workload: Workload, ranks: int, move: Move, own: Traffic, ends_in_transfer: bool
) -> list[Transfer]:
    """Transfers of a sublayer, which are its ``own``, and of the switch before it.

    Under checkpointing, backward runs each block's forward again, from the block's input
    to the last tensor that backward needs: the switch into the block is not repeated, nor
    is a transfer at its very end, unless a gate behind it needs the result.
    """
    place, before, axis, (forward, backward) = move.place, move.before, move.axis, own
    there = [switch(workload, before, axis, ranks)] if before != axis else []
    back = [switch(workload, axis, before, ranks)] if before != axis else []
    if workload.mode != "train":
        return there + forward
    repeated = forward if place.is_first else there + forward
    if place.is_last and ends_in_transfer and not is_modulated(place.sublayer, workload):
        repeated = repeated[:-1]
    again = repeated if workload.recomputes else []
    return there + forward + [each.during("backward") for each in again + backward + back]
