"""RMS norms of queries and keys: of each head by itself, or of all heads together.

Across heads, one RMS of all heads' numbers at a position: a rank that has only some of the heads
needs the others' squares. Forward sums two numbers a position over the ranks, one of the queries
and one of the keys; backward sums their gradients.
"""

from typing import final

import torch
from torch import Tensor, nn

from spbench.comm.collectives import Collectives
from spbench.layers.kernels import rms_norm
from spbench.layers.linear import (
    LinearSpec,
    Stretch,
    cut_by_neighbours,
    empty_parameter,
    mark_of_heads,
)
from spbench.layers.memory_order import in_memory_order
from spbench.workload.block import Attention, Sublayer
from spbench.workload.fields import ACROSS_HEADS, DTYPE_BYTES
from spbench.workload.traffic import Transfer
from spbench.workload.workload import Workload

EPS = 1e-6
SUMMED_BYTES = 4
"""Least bytes of a number that is summed over the ranks: squares of 16 bits are summed in 32."""


@final
class EachHeadNorm(nn.Module):
    """An RMS norm of each head's query and of each head's key, its scale shared by the heads."""

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.q_norm, self.k_norm = nn.RMSNorm(head_dim, eps=EPS), nn.RMSNorm(head_dim, eps=EPS)
        mark_of_heads(*self.parameters())

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return _normed(q, self.q_norm.weight), _normed(k, self.k_norm.weight)


@final
class AcrossHeadsNorm(nn.Module):
    """An RMS norm of all heads' queries at a position, and one of all keys, with their scales."""

    def __init__(self, workload: Workload, comm: Collectives, *, is_cut: bool) -> None:
        """``is_cut``: whether this rank has some of the heads, by whole groups of them."""
        super().__init__()
        self.comm, self.is_cut = comm, is_cut
        self.numbers = [n * workload.head_size for n in (workload.heads, workload.key_heads)]
        self.q_norm = self._scale(workload, workload.heads)
        self.k_norm = self._scale(workload, workload.key_heads)

    def _scale(self, workload: Workload, heads: int) -> nn.Module:
        units, shape = workload.key_heads, (heads, workload.head_size)
        spec = LinearSpec(in_shape=(), out_shape=shape, stretches=(Stretch(units, heads // units),))
        part = cut_by_neighbours(spec, 0, self.comm) if self.is_cut else None
        holder = nn.Module()
        holder.weight = empty_parameter(shape, part, self.comm.rank)
        return holder

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        weights = self.q_norm.get_parameter("weight"), self.k_norm.get_parameter("weight")
        if not self.is_cut:
            return _normed(q, weights[0]), _normed(k, weights[1])
        others = self.comm.along(self.comm.mesh.last)
        squares = others.all_reduce(torch.stack([_squares(q), _squares(k)]))
        means = (total / numbers for total, numbers in zip(squares, self.numbers, strict=True))
        q, k = (
            x * (mean + EPS).rsqrt().to(x.dtype)[..., None, None] * weight
            for x, mean, weight in zip((q, k), means, weights, strict=True)
        )
        return q, k


def _normed(x: Tensor, weight: Tensor) -> Tensor:
    return in_memory_order(lambda x: rms_norm(x, weight.shape, weight, EPS), x, 2)


def _squares(x: Tensor) -> Tensor:
    """The sum of squares of a rank's heads at each position, in 32 bits or more."""
    return x.to(torch.promote_types(x.dtype, torch.float32)).square().sum((-2, -1))


def cut_norm_sums(
    sublayer: Sublayer, workload: Workload, tokens: int, ranks: int
) -> list[Transfer]:
    """Transfers of ``AcrossHeadsNorm`` where heads are cut: the same in forward and in backward.

    ``tokens``: those of a sample that the ranks work on.
    """
    if not isinstance(sublayer, Attention) or workload.qk_norm != ACROSS_HEADS:
        return []
    each = max(SUMMED_BYTES, DTYPE_BYTES[workload.dtype])
    return [Transfer.all_reduce(2 * workload.samples * tokens * each, ranks)]
