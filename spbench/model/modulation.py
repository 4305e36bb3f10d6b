"""Norms: plain, or modulated by a conditioning vector (adaLN: shift, scale, gate).

adaLN is the DiT family's lighter form: one projection of the condition serves all blocks of a kind,
and each sublayer adds a table of its own. A condition for each position of ``time`` belongs to that
axis and follows its shard; so does every gradient that it contributes. Where time is part of an
axis, each of its positions takes the vectors of its time. A condition for each token comes cut as
the activation is: where that is cut along one axis and then along another, in both ways, and both
are projected, since the vectors are more than the activation to send.
"""

from collections.abc import Sequence
from itertools import count
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spbench.comm.collectives import Collectives
from spbench.layers.memory_order import in_memory_order
from spbench.layers.watching import rms_norm
from spbench.model.adaln import EPS, modulated_norm, plain_norm, plain_rms_norm
from spbench.model.positions import Places, rows_at
from spbench.workload.flops import is_modulated
from spbench.workload.sharding import Shard
from spbench.workload.workload import Workload


def modulation_indices(workload: Workload) -> list[int | None]:
    """Which of the projected vectors modulates each sublayer of the stack; None: none does."""
    numbers = count()
    sets = {
        block: [next(numbers) if is_modulated(each, workload) else None for each in block]
        for block in dict.fromkeys(part.block for part in workload.parts)
    }
    return [index for part in workload.parts for index in sets[part.block] * part.depth]


@final
class PlainNorm(nn.Module):
    """LayerNorm with its own scale and bias, or RMSNorm; the residual is added as it is.

    (B, *axes, H) -> its norm, the activation for the residual to go on with, and no gate.
    """

    def __init__(self, workload: Workload) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(workload.hidden))
        self.bias = nn.Parameter(torch.empty(workload.hidden)) if workload.norm == "layer" else None

    def forward(self, x: Tensor, conditions: Sequence[Tensor]) -> tuple[Tensor, Tensor, None]:
        return in_memory_order(self._normed, x), x, None

    def _normed(self, x: Tensor) -> Tensor:
        if self.bias is None:
            return rms_norm(x, x.shape[-1:], self.weight, EPS)
        return F.layer_norm(x, x.shape[-1:], self.weight, self.bias, eps=EPS)


@final
class ModulatedNorm(nn.Module):
    """The norm without weights, then (1 + scale) x + shift; the residual's gate comes beside it.

    A rank takes its part of the condition where it belongs to the sharded axis.
    """

    def __init__(
        self, workload: Workload, index: int, shard: Shard, comm: Collectives, which: int = 0
    ) -> None:
        """Takes vector ``index`` of condition ``which``."""
        super().__init__()
        self.index, self.which, self.comm = index, which, comm
        in_time = ["time"] if workload.modulation == "per_time" else []
        self.dim = workload.dim(workload.home("time")) if in_time else None
        self.cut = shard.of(self.dim) if in_time else None
        self.places = Places(workload, in_time)
        self.plain = plain_norm if workload.norm == "layer" else plain_rms_norm
        self.table = nn.Parameter(torch.empty(3, workload.hidden))

    def forward(self, x: Tensor, conditions: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        mine, places = conditions[self.which].select(-3, self.index), self.places.of("time")
        if self.cut is not None and places is None:
            mine = self.comm.take(mine, self.cut)
        elif x.ndim + 1 < mine.ndim:  # text, which has one axis
            mine = mine.flatten(1, -3)
        mine = mine + self.table
        if places is not None and self.dim is not None:
            held = places if self.cut is None else self.comm.take(places, self.cut.along(0))
            mine = rows_at(mine, held, self.dim)
        shift, scale, gate = mine.unbind(-2)
        return *modulated_norm(x, scale, shift, self.plain), gate


@final
class Conditioning(nn.Module):
    """(B, H) or (B, T, H) -> (B, *ones or time, modulated, 3, H); a part of (B, *axes, H) of it."""

    def __init__(self, workload: Workload, modulated: int) -> None:
        super().__init__()
        hidden, conditioned = workload.hidden, workload.conditioned_axes
        along = {workload.home(axis) for axis in conditioned}
        self.missing = [workload.dim(axis) for axis in workload.axes if axis not in along]
        self.parts = (modulated, 3, hidden)
        self.weight = nn.Parameter(torch.empty(modulated * 3 * hidden, hidden))
        self.bias = nn.Parameter(torch.empty(modulated * 3 * hidden))

    def forward(self, condition: Tensor) -> Tensor:
        projected = in_memory_order(self._projected, condition)
        for dim in self.missing:
            projected = projected.unsqueeze(dim)
        return projected.unflatten(-1, self.parts)

    def _projected(self, condition: Tensor) -> Tensor:
        return F.linear(F.silu(condition), self.weight, self.bias)
