"""The inputs of a step: the activation and its side inputs, whole or this rank's part.

The activation and the pair tensors are sharded; the condition and the text tokens of
cross-attention are small and whole on every rank.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from spbench.comm.collectives import Collectives
from spbench.model.init_weights import named_tensor
from spbench.workload.sharding import Shard
from spbench.workload.workload import Workload


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

    def part(self, first: Shard, pairs: dict[str, Shard], comm: Collectives) -> Inputs:
        """This rank's part of whole inputs."""
        mine = {axis: comm.take(self.pairs[axis], cut).contiguous() for axis, cut in pairs.items()}
        return replace(self, x=comm.take(self.x, first).contiguous(), pairs=mine)

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


def seeded(workload: Workload, seed: int) -> Inputs:
    """Whole inputs on the CPU, equal on every rank."""
    return make(workload, lambda name, shape: named_tensor(name, shape, seed))


def random(workload: Workload, like: Tensor, cut: dict[str, tuple[int, int]]) -> Inputs:
    """This rank's part, made on the device of ``like``; ``cut`` gives dim and size by name."""

    def tensor(name: str, shape: tuple[int, ...]) -> Tensor:
        if name in cut:
            dim, size = cut[name]
            shape = (*shape[:dim], size, *shape[dim + 1 :])
        return torch.randn(shape, device=like.device, dtype=like.dtype)

    return make(workload, tensor)
