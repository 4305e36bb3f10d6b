"""Projections whose weights neighbours cut: each has some columns into a sublayer, some rows out.

How the input comes to the columns, and how the sum over the rows goes to the ranks, is the
strategy's. Groups of neighbours are those of the mesh's last axis; each cuts the weights alike.
"""

from collections.abc import Callable
from typing import final

from torch import Tensor, nn

from spbench.comm.collectives import Collectives
from spbench.layers.linear import LinearSpec, cut_by_neighbours, empty_parameter, product
from spbench.layers.memory_order import put_outermost
from spbench.workload.sharding import Shard

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
