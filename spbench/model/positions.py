"""Positions along axes: learned positions are added to the input, rotary positions turn q and k.

Both belong to an axis and follow its shard, whichever positions a rank holds.
"""

from typing import final

import torch
from torch import Tensor, nn

from spbench.comm.collectives import Collectives
from spbench.layers.memory_order import joined_in_memory_order, split_in_memory_order
from spbench.workload.block import Attention
from spbench.workload.sharding import Shard, shard_sizes
from spbench.workload.workload import Workload

BASE = 10_000.0


@final
class LearnedPositions(nn.Module):
    """(B, *axes, H) plus a vector for each position of each axis with learned positions."""

    def __init__(self, workload: Workload, comm: Collectives) -> None:
        super().__init__()
        self.comm = comm
        self.dims = {
            a: workload.dim(a) for a in workload.axes if workload.position_of(a) == "learned"
        }
        self.tables = nn.ParameterDict(
            {axis: torch.empty(workload.axes[axis], workload.hidden) for axis in self.dims}
        )

    def forward(self, x: Tensor, shard: Shard) -> Tensor:
        for axis, dim in self.dims.items():
            table = self.tables[axis]
            cut = shard.of(dim)
            mine = table if cut is None else self.comm.take(table, cut.along(0))
            x = x + mine.view(*mine.shape[:1], *[1] * (x.ndim - 2 - dim), mine.shape[1])
        return x


@final
class RotaryTables(nn.Module):
    """cos and sin (2, positions, pairs) of each axis and number of pairs, once for all layers."""

    def __init__(self, workload: Workload) -> None:
        super().__init__()
        for attention in workload.attentions:
            for axis, pairs in turned_pairs(attention, workload).items():
                rates = BASE ** -(torch.arange(pairs, dtype=torch.float64) / pairs)
                angles = torch.arange(workload.axes[axis], dtype=torch.float64)[:, None] * rates
                table = torch.stack([angles.cos(), angles.sin()])
                self.register_buffer(_name(axis, pairs), table, persistent=False)

    def of(self, axis: str, pairs: int) -> Tensor:
        return self.get_buffer(_name(axis, pairs))


def turned_pairs(attention: Attention, workload: Workload) -> dict[str, int]:
    """Pairs of numbers of a head that each rotary axis turns, as even as can be."""
    axes = workload.rotary_axes(attention)
    sizes = shard_sizes(workload.head_size // 2, len(axes)) if axes else ()
    return dict(zip(axes, sizes, strict=True))


def _name(axis: str, pairs: int) -> str:
    return f"{axis} {pairs}"


@final
class Rotary(nn.Module):
    """Turns pairs of numbers of each query and key by angles that grow with the position.

    Shapes (B, *axes, Z, D) stay. With several rotary axes each has its own share of the
    pairs. (Su et al., RoFormer, 2021, eq. 34; number i is paired with number i + D/2.)
    """

    def __init__(
        self, attention: Attention, workload: Workload, tables: RotaryTables, comm: Collectives
    ) -> None:
        super().__init__()
        self.tables, self.comm = tables, comm
        self.pairs = turned_pairs(attention, workload)
        self.dims = {axis: workload.dim(axis) for axis in self.pairs}

    def forward(self, q: Tensor, k: Tensor, shard: Shard | None) -> tuple[Tensor, Tensor]:
        """``shard`` tells how the axes of q and k are cut; None: they are whole."""
        if not self.pairs:
            return q, k
        tables = []
        for axis, dim in self.dims.items():
            table = self.tables.of(axis, self.pairs[axis])
            if shard is not None and (cut := shard.of(dim)):
                table = self.comm.take(table, cut.along(1))
            tables.append(table.view(2, -1, *[1] * (q.ndim - 2 - dim), table.shape[-1]))
        return self._turned(q, tables), self._turned(k, tables)

    def _turned(self, x: Tensor, tables: list[Tensor]) -> Tensor:
        axes, widths = len(self.pairs), [*self.pairs.values()]
        halves = split_in_memory_order(x, [*widths, *widths], -1, features=2)
        parts = list(zip(halves[:axes], halves[axes:], tables, strict=True))
        turned = [a * cos - b * sin for a, b, (cos, sin) in parts]
        turned += [a * sin + b * cos for a, b, (cos, sin) in parts]
        return joined_in_memory_order(turned, 2)
