"""The inputs of a step: the activation and its side inputs, whole or this rank's part.

The activation and the pair tensors are sharded; the condition and the text tokens of
cross-attention are small and whole on every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import final

import torch
from torch import Tensor

from spbench.model.init_weights import CPU, named_tensor
from spbench.workload.sharding import Run, Shard
from spbench.workload.workload import Workload

PIECES = 64
"""Pieces at most that a seeded tensor is made in."""


@final
@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Inputs of one model."""

    x: Tensor
    """(B, *axes, H)."""
    condition: Tensor
    """(B, H), or (B, T, H) with a vector for each position of time."""
    text: Tensor
    """(B, L, H), the tokens that cross-attention attends to."""
    pairs: dict[str, Tensor]
    """(B, S, S, C) for each axis whose attention has a pair bias; its first S is sharded."""

    @property
    def tensors(self) -> list[Tensor]:
        return [self.x, self.condition, self.text, *self.pairs.values()]

    def map(self, change: Callable[[Tensor], Tensor]) -> Inputs:
        return Inputs(
            x=change(self.x),
            condition=change(self.condition),
            text=change(self.text),
            pairs={axis: change(pair) for axis, pair in self.pairs.items()},
        )

    def requiring_grad(self, wanted: bool) -> Inputs:
        """These inputs; the activation and the pair tensors get gradients if ``wanted``."""
        for leaf in (self.x, *self.pairs.values()):
            leaf.requires_grad_(wanted)
        return self

    def forget_gradients(self) -> None:
        for leaf in (self.x, *self.pairs.values()):
            leaf.grad = None

    @property
    def gradients(self) -> dict[str, Tensor]:
        """Gradients that a backward pass has left, by name."""
        named = {"gradient of the input": self.x.grad}
        named |= {gradient_name(axis): pair.grad for axis, pair in self.pairs.items()}
        return {name: grad for name, grad in named.items() if grad is not None}


def gradient_name(axis: str) -> str:
    return f"gradient of the pairs of {axis}"


def make(workload: Workload, tensor: Callable[[str, tuple[int, ...]], Tensor]) -> Inputs:
    """Whole inputs of a workload, each made by ``tensor(name, shape)``."""
    batch, hidden = workload.batch, workload.hidden
    times = (workload.axes["time"],) if workload.modulation == "per_time" else ()
    return Inputs(
        x=tensor("x", (batch, *workload.axes.values(), hidden)),
        condition=tensor("condition", (batch, *times, hidden)),
        text=tensor("context", (batch, max(1, workload.text_tokens), hidden)),
        pairs={
            axis: tensor(f"pairs of {axis}", (batch, *[workload.axes[axis]] * 2, channels))
            for axis, channels in workload.pairs.items()
        },
    )


def seeded(
    workload: Workload,
    seed: int,
    device: torch.device = CPU,
    dtype: torch.dtype = torch.float32,
    cuts: Mapping[str, Shard] = MappingProxyType({}),
    rank: int = 0,
) -> Inputs:
    """Inputs on ``device``, the same for any strategy; of those in ``cuts`` what ``rank`` holds."""
    return make(
        workload,
        lambda name, shape: seeded_part(
            name, shape, seed, device=device, dtype=dtype, cut=cuts.get(name), rank=rank
        ),
    )


def seeded_part(
    name: str,
    shape: tuple[int, ...],
    seed: int,
    *,
    device: torch.device,
    dtype: torch.dtype,
    cut: Shard | None,
    rank: int,
) -> Tensor:
    """A rank's part of a seeded tensor; None: all of it.

    It is made in pieces along dim 1, the first sequence axis, so that no rank ever holds a whole
    activation. The sharded axis is the outermost in memory.
    """
    sizes, outermost = list(shape), 0
    if cut is not None:
        sizes[cut.dim], outermost = cut.sizes[rank], cut.dim
    sizes.insert(0, sizes.pop(outermost))
    part = torch.empty(sizes, device=device, dtype=dtype).movedim(0, outermost)
    filled, most = 0, -(-shape[1] // PIECES)
    for first in range(0, shape[1], most):
        piece = (shape[0], min(most, shape[1] - first), *shape[2:])
        dim, runs = (
            (1, [(0, piece[1])]) if cut is None else (cut.dim, _runs(cut, rank, first, piece))
        )
        if not runs:
            continue
        whole = named_tensor(f"{name} from {first}", piece, seed, device)
        kept = torch.cat([whole.narrow(dim, *run) for run in runs], dim)
        part.narrow(1, filled, kept.shape[1]).copy_(kept)
        filled += kept.shape[1]
    return part


def _runs(cut: Shard, rank: int, first: int, piece: tuple[int, ...]) -> list[Run]:
    """The runs of ``rank`` in a piece that begins at ``first`` of dim 1, from its own beginning."""
    if cut.dim != 1:
        return list(cut.runs[rank])
    ends = [(max(start, first), min(start + n, first + piece[1])) for start, n in cut.runs[rank]]
    return [(start - first, end - start) for start, end in ends if start < end]
