"""Which keys a query sees, as data: few tiles that a kernel takes without a mask of its own.

Whatever leaves out keys of a self-attention is a ``Mask``. Strategies ask it for the tiles of what
they have at hand, of their own queries and of whoever's keys, and for the positions that queries
need at all. Positions are those of the attended sequence, in tensor order; ranks hold runs of it,
which lie end to end in their memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Literal, NamedTuple

from spbench.workload.sharding import Run, Shard, merged_runs

if TYPE_CHECKING:
    from numpy import ndarray

Runs = tuple[Run, ...]
"""Positions that lie end to end in memory, as runs."""
Sees = Literal["whole", "early", "late"]
"""What a query sees of a tile: all keys; in a square those up to its own column, or from it on."""


class Strip(NamedTuple):
    """Stretches of positions, ``size`` each, that begin every ``step`` positions from ``first``."""

    first: int
    size: int
    step: int = 1
    times: int = 1


@dataclass(frozen=True, eq=False)  # compared by identity: they are made once
class Picks:
    """Stretches of positions that lie anywhere."""

    places: ndarray
    """(times, size), each place once."""

    @property
    def times(self) -> int:
        """Stretches."""
        return len(self.places)

    @property
    def size(self) -> int:
        """Positions of each."""
        return int(self.places.shape[1])


class Tile(NamedTuple):
    """Queries and keys in memory, stretch by stretch, and what each query sees of its stretch."""

    rows: Strip | Picks
    keys: Strip | Picks
    sees: Sees

    @property
    def pairs(self) -> int:
        """Pairs of a query and a key that it sees."""
        rows, keys = self.rows, self.keys
        if self.sees == "whole":
            return rows.times * rows.size * keys.size
        return rows.times * rows.size * (rows.size + 1) // 2  # a triangle with its diagonal


class Mask(ABC):
    """What leaves out keys of a self-attention. Subclasses are frozen data, and compare by it."""

    @property
    @abstractmethod
    def is_apart(self) -> bool:
        """Whether no two tiles of a whole sequence have a query or a key in common: each is an
        attention by itself."""

    @abstractmethod
    def tiles(self, rows: Runs, keys: Runs) -> Sequence[Tile]:
        """What queries at ``rows`` see of the keys at ``keys``, where they lie in memory, which may
        be in any order: each pair once, none that is hidden."""

    @abstractmethod
    def needed(self, rows: Runs) -> Runs:
        """The positions that queries at ``rows``, in ascending order, see, in the same order."""

    @abstractmethod
    def pairs(self, rows: Runs) -> int:
        """Pairs of a query at ``rows`` and a key that it sees."""


@lru_cache(maxsize=32)
def held(shard: Shard, lengths: tuple[int, ...], at: int) -> tuple[Runs, ...]:
    """Positions of a joined sequence that each rank holds, where one of its axes is cut.

    Parameters
    ----------
    shard
        The cut of that axis.
    lengths
        The whole lengths of all joined axes, in tensor order.
    at
        Which of them is cut.

    >>> held(Shard.even(1, 4, 2), (2, 4), 1)
    (((0, 2), (4, 2)), ((2, 2), (6, 2)))
    """
    inner, outer = prod(lengths[at + 1 :]), prod(lengths[:at])
    steps = [n * lengths[at] for n in range(outer)]  # where the cut axis begins again
    return tuple(
        merged_runs(((step + first) * inner, n * inner) for step in steps for first, n in runs)
        for runs in shard.runs
    )
