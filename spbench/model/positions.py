"""Positions along axes: learned positions are added to the input, rotary positions turn q and k.

Both belong to an axis and follow its shard, whichever positions a rank holds. Where an axis of the
tensor is several of the model's in a row, each of its positions has a place along each of them:

    time 2 x height 3     positions         0 1 2 3 4 5
                          places in time    0 0 0 1 1 1
                          and in height     0 1 2 0 1 2

Where documents are packed along an axis, each begins at 0 again, as in training on packed
sequences: a document has the same positions wherever it lies.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import final

import torch
from torch import Tensor, nn

from spbench.comm.collectives import Collectives
from spbench.layers.memory_order import joined_in_memory_order, split_in_memory_order
from spbench.workload.block import Attention
from spbench.workload.sharding import Shard, shard_sizes
from spbench.workload.workload import Workload

BASE = 10_000.0


def places_along(coordinate: str, workload: Workload) -> Tensor | None:
    """The place along ``coordinate`` of each position of its axis; None: it is an axis itself."""
    grid = workload.grid(workload.home(coordinate))
    if len(grid) == 1:
        return None
    # (n, 1, 1) for the outermost of three: the same for all positions of the inner ones
    lengths = [n if axis == coordinate else 1 for axis, n in grid.items()]
    return torch.arange(grid[coordinate]).view(lengths).expand(*grid.values()).flatten()


def places_in_documents(coordinate: str, workload: Workload) -> Tensor | None:
    """``places_along``, which begin at 0 in each document of the axis."""
    if documents := workload.packing(coordinate):
        return torch.cat([torch.arange(length) for length in documents])
    return places_along(coordinate, workload)


def rows_at(table: Tensor, places: Tensor, dim: int = 0) -> Tensor:
    """The rows of ``table`` along ``dim`` at these places, each as often as it is named.

    Backward sums the gradients of a row's copies, as many as a frame has positions: in float32 at
    least, since 16 bits would lose them.
    """
    wide = table.to(torch.promote_types(table.dtype, torch.float32))
    return wide.index_select(dim, places).to(table.dtype)


@final
class LearnedPositions(nn.Module):
    """(B, *axes, H) plus a vector for each position of each axis with learned positions."""

    def __init__(self, workload: Workload, comm: Collectives) -> None:
        super().__init__()
        self.comm = comm
        axes = workload.coordinates
        learned = [axis for axis in axes if workload.position_of(axis) == "learned"]
        self.dims = {axis: workload.dim(workload.home(axis)) for axis in learned}
        self.tables = nn.ParameterDict(
            {axis: torch.empty(axes[axis], workload.hidden) for axis in learned}
        )
        self.places = Places(workload, learned, places_in_documents)

    def forward(self, x: Tensor, shard: Shard) -> Tensor:
        for axis, dim in self.dims.items():
            # Where the axis is one of the tensor, rows of the table are its positions. Where it is
            # one of several in a row, or holds documents, each position names its row.
            table, places, cut = self.tables[axis], self.places.of(axis), shard.of(dim)
            mine = table if places is None else places
            mine = mine if cut is None else self.comm.take(mine, cut.along(0))
            mine = mine if places is None else rows_at(table, mine)
            # (n, H) -> (n, 1, ..., H), with a one for each axis behind this one; dims before it
            # broadcast by themselves. In (B, T, S, H) time has (T, 1, H).
            x = x + mine.view(*mine.shape[:1], *[1] * (x.ndim - 2 - dim), mine.shape[1])
        return x


@final
class Places(nn.Module):
    """The places of positions along these axes of the model, as buffers of whole numbers."""

    def __init__(
        self,
        workload: Workload,
        coordinates: Sequence[str],
        along: Callable[[str, Workload], Tensor | None] = places_along,
    ) -> None:
        """``along``: the places along one of them; None: positions are their own."""
        super().__init__()
        self.names: dict[str, str] = {}
        for number, axis in enumerate(coordinates):
            if (places := along(axis, workload)) is not None:
                self.names[axis] = f"places {number}"  # an axis may have any name, a buffer not
                self.register_buffer(self.names[axis], places, persistent=False)

    def of(self, coordinate: str) -> Tensor | None:
        """None: positions are their own places, as along an axis of the tensor itself."""
        name = self.names.get(coordinate)
        return None if name is None else self.get_buffer(name)


Turned = dict[str, dict[str, int]]
"""Axes of a tensor; of each the axes of the model that turn pairs of numbers, and how many."""


@final
class RotaryTables(nn.Module):
    """cos and sin (2, positions, pairs) of each axis and its pairs, once for all layers."""

    def __init__(self, workload: Workload) -> None:
        super().__init__()
        self.names: dict[str, str] = {}
        for attention in workload.attentions:
            for axis, pairs in turned_pairs(attention, workload).items():
                name = self.names.setdefault(f"{axis} {pairs}", f"table {len(self.names)}")
                # An axis that is several of the model: the pairs of each, side by side.
                angles = torch.cat(
                    [_angles(coordinate, n, workload) for coordinate, n in pairs.items()], 1
                )
                table = torch.stack([angles.cos(), angles.sin()])
                self.register_buffer(name, table, persistent=False)

    def of(self, axis: str, pairs: Mapping[str, int]) -> Tensor:
        return self.get_buffer(self.names[f"{axis} {pairs}"])


def _angles(coordinate: str, pairs: int, workload: Workload) -> Tensor:
    """(positions, pairs): the angles that grow with the place along ``coordinate``."""
    # theta_i = 10000^(-i / pairs) for pair i: RoFormer's 10000^(-2 (i - 1) / D), D = 2 pairs
    rates = BASE ** -(torch.arange(pairs, dtype=torch.float64) / pairs)
    along = torch.arange(workload.coordinates[coordinate], dtype=torch.float64)[:, None] * rates
    places = places_in_documents(coordinate, workload)
    return along if places is None else along[places]


def turned_pairs(attention: Attention, workload: Workload) -> Turned:
    """Pairs of numbers of a head that each rotary axis of the model turns, as even as can be."""
    rotary = workload.rotary_axes(attention)
    # 32 pairs of three axes are 11, 11 and 10.
    sizes = shard_sizes(workload.head_size // 2, len(rotary)) if rotary else ()
    turned: Turned = {}
    for coordinate, pairs in zip(rotary, sizes, strict=True):
        turned.setdefault(workload.home(coordinate), {})[coordinate] = pairs
    return turned


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
            # (2, n, pairs) -> (2, n, 1, ..., pairs), with ones for the axes behind it and for the
            # heads: in (B, T, S, Z, D) time has (2, T, 1, 1, pairs).
            tables.append(table.view(2, -1, *[1] * (q.ndim - 2 - dim), table.shape[-1]))
        return self._turned(q, tables), self._turned(k, tables)

    def _turned(self, x: Tensor, tables: list[Tensor]) -> Tensor:
        axes, widths = len(self.pairs), [sum(pairs.values()) for pairs in self.pairs.values()]
        # With p and r pairs of two axes a head is p r | p r: the first number of each pair, then
        # the second of each.
        halves = split_in_memory_order(x, [*widths, *widths], -1, features=2)
        parts = list(zip(halves[:axes], halves[axes:], tables, strict=True))
        # number i of the first half and number i of the second are a point (a, b), which turns
        turned = [a * cos - b * sin for a, b, (cos, sin) in parts]
        turned += [a * sin + b * cos for a, b, (cos, sin) in parts]
        return joined_in_memory_order(turned, 2)
