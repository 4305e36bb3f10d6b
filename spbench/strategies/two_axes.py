"""Two axes of the tensor sharded at once, over the two axes of a mesh of ranks.

    {"outer": 2, "inner": 4}     time+space     time cut over 2 groups, space within each of 4 ranks
                                 space          space cut over all 8

One all-to-all moves one of the two cuts, in the groups of its axis of the mesh. An axis that is cut
over all ranks is cut within the groups first: there alone a cut joins another or leaves it, since
elsewhere its positions would come out of order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise, permutations
from typing import final

from spbench.strategies.fixed_axis import FixedAxis
from spbench.workload.block import Sublayer
from spbench.workload.mesh import ALL
from spbench.workload.sharding import Shard
from spbench.workload.traffic import Hop
from spbench.workload.workload import Workload

OUTER, INNER = "outer", "inner"
Pair = tuple[str, str]
"""The axes that are cut over the outer and over the inner ranks; twice the same: over all."""


@final
@dataclass(frozen=True)
class TwoAxes:
    """What may be sharded of a workload at once, and how to switch."""

    workload: Workload
    ranks: int
    inner: int  # ranks of an inner group; 1: one axis is sharded at a time
    joint: tuple[FixedAxis, Workload] | None
    """What attends to all axes joined, and a workload of such attention alone."""

    @property
    def mesh(self) -> Mapping[str, int]:
        """The groups of ranks; without inner ones those of what attends to all axes joined."""
        if self.inner > 1:
            return {OUTER: self.ranks // self.inner, INNER: self.inner}
        if self.joint is None:
            return {"sequence": self.ranks}
        return self.joint[0].mesh(self.joint[1], self.ranks)

    @cached_property
    def pairs(self) -> dict[str, Pair]:
        """The axes of each entry of a layout, all of them long enough."""
        axes, outer, inner = self.workload.axes, self.ranks // self.inner, self.inner
        fits = permutations(axes, 2) if inner > 1 else ()
        two = {f"{a}+{b}": (a, b) for a, b in fits if axes[a] >= outer and axes[b] >= inner}
        return two | {axis: (axis, axis) for axis, n in axes.items() if n >= self.ranks}

    def free(self, sublayer: Sublayer) -> list[str]:
        """Entries without an axis that is attended."""
        return [x for x, pair in self.pairs.items() if not {*pair} & {*sublayer.attended}]

    @cached_property
    def _shards(self) -> dict[str, Shard]:
        return {entry: self._shard(entry) for entry in {**self.pairs, **self.workload.axes}}

    def shard(self, entry: str) -> Shard:
        """What each rank holds: of two axes the product of its parts."""
        return self._shards[entry]

    def _shard(self, entry: str) -> Shard:
        outer, inner = self.pairs.get(entry, (entry, entry))
        if outer == inner:
            return self._over_all(outer)
        each = [run for run in self._outer(outer).runs for _ in range(self.inner)]
        within = self._even(inner, self.inner)
        beside = replace(within, runs=within.runs * (self.ranks // self.inner))
        return Shard(self.workload.dim(outer), tuple(each), beside)

    def hops(self, before: str, after: str) -> Sequence[Hop] | None:
        """The fewest all-to-alls from one entry to another; None: there is no way."""
        if before not in self.pairs or after not in self.pairs:
            return None
        ways, seen = [[before]], {before}
        while ways:
            way = ways.pop(0)
            if way[-1] == after:
                return [self._hops[step] for step in pairwise(way)]
            for entry in self.pairs:
                if entry not in seen and (way[-1], entry) in self._hops:
                    seen.add(entry)
                    ways.append([*way, entry])
        return None

    @cached_property
    def _hops(self) -> dict[tuple[str, str], Hop]:
        """Entries that are one all-to-all apart."""
        return {ends: self._hop(*ends) for ends in permutations(self.pairs, 2) if self._over(*ends)}

    def _over(self, before: str, after: str) -> str:
        """The axis of the mesh whose groups one all-to-all goes in; '': there is none."""
        (a, b), (c, d) = self.pairs[before], self.pairs[after]
        if a == c or (a == b and c == d):
            return INNER if a == c else ALL
        return OUTER if b == d and a != b and c != d else ""

    def _hop(self, before: str, after: str) -> Hop:
        over, ends = self._over(before, after), (before, after)
        if over == ALL:
            return Hop(self.shard(before), self.shard(after))
        moves = int(over == INNER)  # the place in a pair
        cut, other = (self._cut(end, self.pairs[end][moves]) for end in ends)
        two = next(end for end in ends if len({*self.pairs[end]}) == 2)
        return Hop(cut, other, over=over, stays=self._cut(two, self.pairs[before][1 - moves]))

    def _cut(self, entry: str, axis: str) -> Shard:
        return next(x for x in self.shard(entry).cuts if x.dim == self.workload.dim(axis))

    def _outer(self, axis: str) -> Shard:
        if self.workload.axes[axis] >= self.ranks:
            return self._over_all(axis).joined(self.inner)
        return self._even(axis, self.ranks // self.inner)

    def _over_all(self, axis: str) -> Shard:
        if self.joint is None:
            return self._even(axis, self.ranks)
        return self.joint[0].shard(self.joint[1], axis, self.ranks)

    def _even(self, axis: str, parts: int) -> Shard:
        return Shard.even(self.workload.dim(axis), self.workload.axes[axis], parts)
