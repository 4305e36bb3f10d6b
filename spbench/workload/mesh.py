"""The groups of a case's ranks, by name: a grid with one axis for each kind of group.

    {"ring": 2, "heads": 4}       ring 0    0 1 2 3
                                  ring 1    4 5 6 7

The last axis runs fastest. Its groups hold neighbours (0 1 2 3 above), which launchers place on one
node; a group of an earlier axis holds ranks apart (0 4).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from math import prod
from typing import Any, Self, final

from pydantic import (
    ModelWrapValidatorHandler,
    PositiveInt,
    PrivateAttr,
    model_serializer,
    model_validator,
)

from spbench.workload.block import Frozen

Members = tuple[int, ...]
"""The ranks of one group, in its order."""
Groups = tuple[Members, ...]
"""The groups of one axis; each rank is in one of them."""
ALL = "all"
"""What is sent over all ranks, by whatever axes they are meshed."""
CFG = "cfg"
"""The axis whose groups hold other branches of the guidance."""
DP = "dp"
"""The axis whose groups hold other samples of the batch."""
PP = "pp"
"""The axis whose groups hold the stages of a pipeline."""
TP = "tp"
"""The axis whose groups cut weights: always the last, of neighbours."""

WORKS = f"{DP}=2,{TP}=2"
NEIGHBOURS = f"groups of {TP} hold neighbours: write it last, as in {WORKS}"


class CaseMesh(Frozen):
    """Axes of the mesh that a case has around those of its strategy, which has no word in them.

    As data and in files they are sizes by name, outermost first: {dp: 2, tp: 2}.
    """

    dp: PositiveInt = 1
    """Groups of ranks that each compute their part of the batch."""
    cfg: PositiveInt = 1
    """Groups of ranks that each compute their part of the branches of the guidance."""
    pp: PositiveInt = 1
    """Stages of a pipeline, each a group of ranks that has its part of the blocks."""
    tp: PositiveInt = 1
    """Neighbours that cut the weights, each group as one rank of the strategy."""
    _order: tuple[str, ...] = PrivateAttr(default=())
    """Those that are more than 1, outermost first."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """What ``str`` gives, also with commas and with axes of size 1. Raises ValueError, with
        what works."""
        sizes: dict[str, int] = {}
        for part in re.split("[ ,]+", text.strip()):
            axis, _, size = part.partition("=")
            if axis not in cls.model_fields or not re.fullmatch("0*[1-9][0-9]{0,5}", size):
                axes = ", ".join(cls.model_fields)
                works = f"write {DP}=2, or the outermost first as in {WORKS}; axes are {axes}"
                raise ValueError(f"{part!r} is not an axis of a mesh; {works}")
            if axis in sizes:
                raise ValueError(f"{text!r} has {axis} twice; give each axis one size")
            sizes[axis] = int(size)
        if TP in [*sizes][:-1]:
            raise ValueError(f"{text!r}: {NEIGHBOURS}")
        return cls.model_validate(sizes)

    @model_validator(mode="wrap")
    @classmethod
    def _in_order(cls, data: Any, validated: ModelWrapValidatorHandler[Self]) -> Self:
        mesh = validated(data)
        if isinstance(data, Mapping):
            mesh._order = tuple(axis for axis, size in data.items() if size != 1)
            if TP in mesh._order[:-1]:
                raise ValueError(NEIGHBOURS)
        return mesh

    @model_serializer
    def _by_name(self) -> dict[str, int]:
        return dict(self.axes)

    @property
    def axes(self) -> tuple[tuple[str, int], ...]:
        """Names and sizes, outermost first."""
        return tuple((axis, getattr(self, axis)) for axis in self._order)

    @property
    def around(self) -> tuple[tuple[str, int], ...]:
        """Axes whose groups each compute samples of their own: between them go sums of gradients
        alone."""
        return tuple((axis, size) for axis, size in self.axes if axis in (DP, CFG))

    @property
    def groups(self) -> int:
        """Groups of ranks, each with samples of its own."""
        return prod(size for _, size in self.around)

    def __str__(self) -> str:
        """As in the column ``strategy``: dp=2 tp=2; blank where the strategy has all ranks."""
        return " ".join(f"{axis}={size}" for axis, size in self.axes)

    @classmethod
    def split(cls, name: str) -> tuple[str, Self]:
        """The strategy and the mesh of a name that ``beside`` made. Raises ValueError."""
        strategy, _, mesh = name.partition(" ")
        return strategy, cls.parse(mesh) if mesh else cls()

    def why_idle(self, ranks: int) -> str | None:
        """A sentence where so many ranks leave a strategy one in each group, which has nothing to
        send; or None."""
        if not self.axes or prod(size for _, size in self.axes) != ranks:
            return None
        return (
            f"--mesh {','.join(str(self).split())} on {ranks} ranks: each group has one rank, so "
            f"that nothing of the strategies themselves runs; {2 * ranks} ranks would give each two"
        )

    def sizes(self, ranks: int) -> dict[str, int]:
        """Columns: ranks that share samples, and groups of them; one where they do not divide."""
        groups = self.groups if ranks % self.groups == 0 else 1
        return {"sp_size": ranks // groups, "dp_size": groups}

    def beside(self, strategy: str) -> str:
        """The name of a strategy inside of this mesh, as in the column ``strategy``."""
        return f"{strategy} {self}".rstrip()


NO_MESH = CaseMesh()
"""What a case has whose strategy has all ranks."""


@final
@dataclass(frozen=True)
class Mesh:
    """Named axes of a grid of ranks, outermost first."""

    axes: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, sizes: Mapping[str, int]) -> Self:
        return cls(tuple(sizes.items()))

    @cached_property
    def size(self) -> int:
        """Number of ranks."""
        return prod(size for _, size in self.axes)

    def size_of(self, axis: str) -> int:
        """Number of ranks in a group of ``axis``."""
        return dict(self.axes)[axis]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.axes)

    @property
    def last(self) -> str:
        """The axis whose groups hold neighbours."""
        return self.names[-1]

    def only(self, *axes: str) -> "Mesh":
        """The grid of the ranks of a group of these axes."""
        return Mesh(tuple((name, size) for name, size in self.axes if name in axes))

    def divided(self, axis: str, size: int, *, alone: str) -> "Mesh":
        """Each of these ranks as a group of ``size`` neighbours, by the name ``axis``.

        ``alone``: what this grid's axis is called beside them, where it has but one.
        """
        around = self.axes if len(self.axes) > 1 else ((alone, self.size),)
        return Mesh((*around, (axis, size)))

    def place(self, rank: int) -> dict[str, int]:
        """Where a rank stands along each axis."""
        place = {}
        for name, size in reversed(self.axes):  # the last axis runs fastest
            rank, place[name] = divmod(rank, size)
        return place

    def without(self, axis: str) -> tuple[str, ...]:
        """The names of the other axes."""
        return tuple(name for name, _ in self.axes if name != axis)

    @cache  # noqa: B019 (a few meshes in a process)
    def groups(self, *axes: str) -> Groups:
        """The groups of an axis, or of several taken together; they hold each rank once."""
        by_others: dict[tuple[int, ...], list[int]] = {}
        for rank in range(self.size):
            # Ranks of one group stand alike along all other axes.
            others = tuple(at for name, at in self.place(rank).items() if name not in axes)
            by_others.setdefault(others, []).append(rank)
        return tuple(map(tuple, by_others.values()))

    def members(self, rank: int, *axes: str) -> Members:
        """The group of these axes that holds ``rank``."""
        return next(group for group in self.groups(*axes) if rank in group)

    def across(self, nodes: Mapping[int, str]) -> list[str]:
        """Axes with a group whose ranks lie on several nodes, by the node of each rank."""

        def is_apart(group: Members) -> bool:
            return len({nodes[rank] for rank in group if rank in nodes}) > 1

        return [name for name, _ in self.axes if any(map(is_apart, self.groups(name)))]

    def __str__(self) -> str:
        """As in the column ``mesh``: ring=2 heads=4; blank where all ranks are one group."""
        several = [f"{name}={size}" for name, size in self.axes]
        return " ".join(several) if len(several) > 1 else ""
