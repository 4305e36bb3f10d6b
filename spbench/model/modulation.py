"""Norms: plain, modulated by a conditioning vector (adaLN: shift, scale, gate), of heads.

adaLN is the DiT family's lighter form: one projection of the condition serves the whole
model, and each sublayer adds a table of its own. A condition for each position of ``time`` belongs
to that axis and follows its shard; so does every gradient that it contributes.
"""

from __future__ import annotations

from typing import NamedTuple, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spbench.comm.collectives import Collectives
from spbench.workload.sharding import Shard
from spbench.workload.workload import Workload

EPS = 1e-6


class Modulated(NamedTuple):
    """Shift, scale and gate of one sublayer, each broadcastable to (B, *axes, H)."""

    shift: Tensor
    scale: Tensor
    gate: Tensor


@final
class PlainNorm(nn.Module):
    """LayerNorm with its own scale and bias, or RMSNorm; the residual is added as it is."""

    def __init__(self, workload: Workload) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(workload.hidden))
        layer = workload.norm == "layer"
        self.bias = nn.Parameter(torch.empty(workload.hidden)) if layer else None

    def forward(self, x: Tensor, condition: Tensor | None) -> tuple[Tensor, Tensor | None]:
        if self.bias is None:
            return F.rms_norm(x, x.shape[-1:], self.weight, eps=EPS), None
        return F.layer_norm(x, x.shape[-1:], self.weight, self.bias, eps=EPS), None


@final
class ModulatedNorm(nn.Module):
    """The norm without weights, then (1 + scale) x + shift; the residual's gate comes beside it."""

    def __init__(self, workload: Workload, index: int) -> None:
        super().__init__()
        self.index = index
        self.normed = F.layer_norm if workload.norm == "layer" else F.rms_norm
        self.table = nn.Parameter(torch.empty(3, workload.hidden))

    def forward(self, x: Tensor, condition: Tensor | None) -> tuple[Tensor, Tensor | None]:
        assert condition is not None, "a modulated norm needs the condition"
        mine = condition.select(-3, self.index) + self.table
        mod = Modulated(*mine.unbind(-2))
        normed = self.normed(x, x.shape[-1:], eps=EPS)
        return torch.addcmul(mod.shift, normed, 1 + mod.scale), mod.gate


@final
class QueryKeyNorm(nn.Module):
    """An RMS norm of each head's query and of each head's key, its scale shared by the heads."""

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.q_norm, self.k_norm = nn.RMSNorm(head_dim, eps=EPS), nn.RMSNorm(head_dim, eps=EPS)

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return self.q_norm(q), self.k_norm(k)


@final
class Conditioning(nn.Module):
    """The condition (B, H) or (B, T, H) -> (B, *ones or time, modulated, 3, H), sharded."""

    def __init__(self, workload: Workload, modulated: int) -> None:
        super().__init__()
        self.modulated = modulated
        self.axes = len(workload.axes)
        self.time_dim = workload.dim("time") if workload.modulation == "per_time" else None
        hidden = workload.hidden
        self.weight = nn.Parameter(torch.empty(modulated * 3 * hidden, hidden))
        self.bias = nn.Parameter(torch.empty(modulated * 3 * hidden))

    def forward(self, condition: Tensor) -> Tensor:
        """The whole condition, projected; ``on_shard`` takes a rank's part of it."""
        projected = F.linear(F.silu(condition), self.weight, self.bias)
        ones = [1] * self.axes
        if self.time_dim is not None:
            ones[self.time_dim - 1] = condition.shape[1]
        shape = (condition.shape[0], *ones, self.modulated, 3, -1)
        return projected.reshape(shape)

    def on_shard(self, projected: Tensor, shard: Shard, comm: Collectives) -> Tensor:
        """This rank's part if the condition belongs to the sharded axis, else all of it."""
        return comm.take(projected, shard) if shard.dim == self.time_dim else projected
