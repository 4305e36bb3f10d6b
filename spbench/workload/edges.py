"""What ranks need of each other's positions where queries see but some keys, and who sends it.

ranks                   | own positions | own positions | own positions |
keys of the second          [ edge ]    | own           |   [ edge ]
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple, Self, final

from spbench.workload.mask import Mask, Runs
from spbench.workload.sharding import Run


class Edge(NamedTuple):
    """Positions of one rank's that another's queries see."""

    source: int
    to: int
    run: Run


@final
@dataclass(frozen=True)
class Edges:
    """All that ranks need of each other under a mask."""

    held: tuple[Runs, ...]
    all: tuple[Edge, ...]
    """By source, by who gets it, then by position."""

    @classmethod
    @lru_cache(maxsize=32)
    def of(cls, held: tuple[Runs, ...], mask: Mask) -> Self:
        """What the queries of each rank see of other ranks' positions.

        Parameters
        ----------
        held
            Positions that each rank holds.
        mask
            What a query sees.
        """
        owned = sorted((run, rank) for rank, runs in enumerate(held) for run in runs if run[1])
        starts = [run[0] for run, _ in owned]
        edges = set()
        for rank, runs in enumerate(held):
            for begin, length in mask.needed(runs):
                # From the run that holds the first of them on.
                at = bisect_right(starts, begin) - 1
                while at < len(owned) and owned[at][0][0] < begin + length:
                    (start, count), source = owned[at]
                    low, high = max(begin, start), min(begin + length, start + count)
                    if source != rank and low < high:
                        edges.add(Edge(source, rank, (low, high - low)))
                    at += 1
        return cls(held, tuple(sorted(edges)))

    @cached_property
    def sent(self) -> list[int]:
        """Positions that each rank sends, each as often as others need it."""
        counts = [0] * len(self.held)
        for edge in self.all:
            counts[edge.source] += edge.run[1]
        return counts

    @cached_property
    def received(self) -> list[int]:
        """Positions that come to each rank."""
        counts = [0] * len(self.held)
        for edge in self.all:
            counts[edge.to] += edge.run[1]
        return counts

    @cached_property
    def hops(self) -> int:
        """How many ranks on a block has to go round a ring until all that need it have had it."""
        ranks = len(self.held)
        return max(((edge.to - edge.source) % ranks for edge in self.all), default=0)

    def leaving(self, rank: int) -> list[Edge]:
        """What it sends, in order of who gets it."""
        return [edge for edge in self.all if edge.source == rank]

    def coming(self, rank: int) -> list[Edge]:
        """What comes to it, in order of where it is from."""
        return [edge for edge in self.all if edge.to == rank]

    def in_memory(self, rank: int, run: Run) -> Run:
        """Where a run that lies in one of the rank's is in its memory."""
        at = 0
        for first, length in self.held[rank]:
            if first <= run[0] < first + length:
                return at + run[0] - first, run[1]
            at += length
        raise ValueError(f"rank {rank} does not hold positions from {run[0]} on")
