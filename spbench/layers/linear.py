"""Projections into and out of sublayers, whole or cut by heads or columns.

A weight keeps the dims that mean something, (*out, *in): q, k and v of a self-attention are
one weight (Z + 2 Zkv, D, H). The first dim out of a projection into a sublayer, and the first into
a projection out of one, belongs to heads or columns. Every strategy's form of a weight loads from
the same whole one, and a parameter that holds only a part carries ``shard`` to tell which: the gate
compares gradients weight by weight.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spbench.comm.collectives import Collectives
from spbench.layers.memory_order import in_memory_order, put_outermost
from spbench.workload.mesh import Mesh
from spbench.workload.sharding import Shard, Sizes, runs_of, shard_sizes


class Stretch(NamedTuple):
    """Places of a dim that are shared out by units: groups of heads with one key, or columns."""

    units: int
    width: int = 1
    """Places of a unit: with g query heads to a key, g."""

    @property
    def length(self) -> int:
        return self.units * self.width

    def lengths(self, ranks: int) -> Sizes:
        """Places of each rank."""
        return tuple(count * self.width for count in shard_sizes(self.units, ranks))


@dataclass(frozen=True, kw_only=True)
class LinearSpec:
    """A product from the dims ``in_shape`` to the dims ``out_shape``, with bias."""

    in_shape: tuple[int, ...]
    out_shape: tuple[int, ...]
    stretches: tuple[Stretch, ...]
    """The dim that can be cut is these end to end: query, key and value heads; columns."""

    def part(self, dim: int, ranks: int) -> Shard:
        """A rank's part, a run of every stretch, where the cut dim is ``dim`` of a tensor."""
        starts = accumulate((each.length for each in self.stretches), initial=0)
        by_stretch = [
            [(start + first, held) for first, held in runs_of(each.lengths(ranks))]
            for start, each in zip(starts, self.stretches, strict=False)
        ]
        return Shard(dim, tuple(zip(*by_stretch, strict=True)))


def cut_by_neighbours(spec: LinearSpec, dim: int, comm: Collectives) -> Shard:
    """Each rank's part of a weight that every group of the mesh's last axis cuts alike."""
    size = comm.mesh.size_of(comm.mesh.last)
    return spec.part(dim, size).among([rank % size for rank in range(comm.size)])


def part_of(parameter: nn.Parameter) -> Shard | None:
    """This rank's part of the whole weight; None: all of it."""
    return getattr(parameter, "shard", None)


def is_of_heads(parameter: nn.Parameter) -> bool:
    """Whether every head adds to its gradient: a rank with some of the heads has a part of it."""
    return getattr(parameter, "of_heads", False)


def mark_of_heads(*parameters: nn.Parameter) -> None:
    for parameter in parameters:
        parameter.of_heads = True  # type: ignore[attr-defined]


def summed_over(parameter: nn.Parameter, mesh: Mesh, holds_whole: bool) -> tuple[str, ...]:
    """The axes of the mesh whose ranks each compute a part of a gradient.

    ``holds_whole``: whether neighbours hold all positions of their group.
    """
    is_repeated = holds_whole and not is_of_heads(parameter)
    if part_of(parameter) is not None or is_repeated:
        return mesh.without(mesh.last)
    return mesh.names


def empty_parameter(shape: tuple[int, ...], part: Shard | None, rank: int = 0) -> nn.Parameter:
    """An unset parameter of the whole ``shape``, or of this rank's part of it."""
    if part is not None:
        shape = (*shape[: part.dim], part.sizes[rank], *shape[part.dim + 1 :])
    parameter = nn.Parameter(torch.empty(shape))
    parameter.shard = part  # type: ignore[attr-defined]
    return parameter


def product(x: Tensor, weight: Tensor, bias: Tensor | None, inner: int) -> Tensor:
    """(…, *in) times a weight (*out, *in), whose last ``inner`` dims are summed over."""
    out_shape = weight.shape[: weight.ndim - inner]
    matrix = weight.reshape(math.prod(out_shape), -1)
    vector = None if bias is None else bias.flatten()
    return in_memory_order(
        lambda x: F.linear(x.flatten(-inner), matrix, vector).unflatten(-1, out_shape), x, inner
    )


@final
class WholeLinear(nn.Module):
    """A plain linear layer, whatever the shard."""

    def __init__(self, spec: LinearSpec) -> None:
        super().__init__()
        self.inner = len(spec.in_shape)
        self.weight = empty_parameter(spec.out_shape + spec.in_shape, None)
        self.bias = empty_parameter(spec.out_shape, None)

    def forward(self, x: Tensor, shard: Shard | None) -> Tensor:
        return product(x, self.weight, self.bias, self.inner)


# Projections whose weights neighbours cut: each has some columns into a sublayer, some rows out.
#
# How the input comes to the columns, and how the sum over the rows goes to the ranks, is the
# strategy's. Groups of neighbours are those of the mesh's last axis; each cuts the weights alike.

Times = Callable[[Tensor, Tensor, Tensor, Shard], Tensor]
"""The product of an input with a rank's columns (columns, H), with their bias."""
Summed = Callable[[Tensor, Shard], Tensor]
"""The sum over the ranks of their partial products."""


@final
class ColumnCut(nn.Module):
    """This rank's columns. An input without shard is whole, and wants no gradient."""

    def __init__(self, spec: LinearSpec, comm: Collectives, times: Times) -> None:
        super().__init__()
        self.times, self.inner = times, len(spec.in_shape)
        part = cut_by_neighbours(spec, 0, comm)
        self.weight = empty_parameter(spec.out_shape + spec.in_shape, part, comm.rank)
        self.bias = empty_parameter(spec.out_shape, part, comm.rank)

    def forward(self, x: Tensor, shard: Shard | None) -> Tensor:
        if shard is None:
            return product(x, self.weight, self.bias, self.inner)
        out = self.times(x, self.weight.flatten(0, -2), self.bias.flatten(), shard)
        return out.unflatten(-1, self.bias.shape)


@final
class RowCut(nn.Module):
    """This rank's rows, then the sum over the ranks; the bias is added once, after it."""

    def __init__(self, spec: LinearSpec, comm: Collectives, summed: Summed) -> None:
        super().__init__()
        self.summed, self.inner = summed, len(spec.in_shape)
        part = cut_by_neighbours(spec, len(spec.out_shape), comm)
        self.weight = empty_parameter(spec.out_shape + spec.in_shape, part, comm.rank)
        self.bias = empty_parameter(spec.out_shape, None)

    def forward(self, x: Tensor, shard: Shard) -> Tensor:
        partial = product(put_outermost(x, shard.dim), self.weight, None, self.inner)
        return self.summed(partial, shard) + self.bias
