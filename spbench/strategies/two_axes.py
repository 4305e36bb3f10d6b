"""Two axes of the tensor sharded at once, over the two axes of a mesh of ranks.

    {"outer": 2, "inner": 4}     time+space     time cut over 2 groups, space within each of 4 ranks
                                 space          space cut over all 8

One all-to-all moves one of the two cuts, in the groups of its axis of the mesh. An axis that is cut
over all ranks is cut within the groups first: there alone a cut joins another or leaves it, since
elsewhere its positions would come out of order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise, permutations
from typing import final

from spbench.strategies.fixed_axis import FixedAxis
from spbench.workload.block import Sublayer
from spbench.workload.mesh import ALL
from spbench.workload.sharding import Shard
from spbench.workload.step_traffic import Hop
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
    inner: int
    """Ranks of an inner group; 1: one axis is sharded at a time."""
    joint: Workload | None
    """Attention that joins all axes, and nothing else; None: there is none."""
    other: FixedAxis | None
    """What attends there, and cuts an axis over all ranks."""

    @property
    def mesh(self) -> Mapping[str, int]:
        """The groups of ranks; without inner ones those of what attends to all axes joined."""
        if self.inner > 1:
            return {OUTER: self._groups, INNER: self.inner}
        if self.joint is None or self.other is None:
            return {"sequence": self.ranks}
        return self.other.mesh(self.joint, self.ranks)

    @property
    def _groups(self) -> int:
        return self.ranks // self.inner

    @cached_property
    def pairs(self) -> dict[str, Pair]:
        """The axes of each entry of a layout, all of them long enough."""
        axes, outer, inner = self.workload.axes, self._groups, self.inner
        fits = permutations(axes, 2) if inner > 1 else ()
        two = {f"{a}+{b}": (a, b) for a, b in fits if axes[a] >= outer and axes[b] >= inner}
        return two | {axis: (axis, axis) for axis, n in axes.items() if n >= self.ranks}

    def free(self, sublayer: Sublayer) -> list[str]:
        """Entries without an axis that is attended."""
        return [x for x, pair in self.pairs.items() if not {*pair} & {*sublayer.attended}]

    def shard(self, entry: str) -> Shard:
        """What all ranks hold; of two axes, each the product of its parts."""
        outer, inner = self.pairs.get(entry, (entry, entry))
        if outer == inner:
            return self._over_all(outer)
        each = [run for run in self._outer(outer).runs for _ in range(self.inner)]
        within = self._even(inner, self.inner)
        beside = replace(within, runs=within.runs * self._groups)
        return Shard(self.workload.dim(outer), tuple(each), beside)

    def hops(self, before: str, after: str) -> Sequence[Hop] | None:
        """The fewest all-to-alls from one entry to another; None: there is no way."""
        if before not in self.pairs or after not in self.pairs:
            return None
        ways, seen = [[before]], {before}
        while ways:
            way = ways.pop(0)
            if way[-1] == after:
                return [self._hop(*step) for step in pairwise(way)]
            for entry in self.pairs:
                if entry not in seen and self._over(way[-1], entry):
                    seen.add(entry)
                    ways.append([*way, entry])
        return None

    def _over(self, before: str, after: str) -> str | None:
        """The axis of the mesh whose groups one all-to-all goes in; None: there is none."""
        (a, b), (c, d) = self.pairs[before], self.pairs[after]
        if (a == b and c == d) or a == c:
            return ALL if a != c else INNER
        return OUTER if b == d and a != b and c != d else None

    def _hop(self, before: str, after: str) -> Hop:
        over, ends = self._over(before, after), (before, after)
        pairs = [self.pairs[each] for each in ends]
        if over == ALL:
            return Hop(self.shard(before), self.shard(after))
        assert over is not None, "only entries one all-to-all apart are next to each other"
        moves, stays = (1, 0) if over == INNER else (0, 1)
        cut, other = (self._cut(x, pair[moves]) for x, pair in zip(ends, pairs, strict=True))
        whole = next(end for end, (a, b) in zip(ends, pairs, strict=True) if a != b)
        return Hop(cut, other, over=over, stays=self._cut(whole, pairs[0][stays]))

    def _cut(self, entry: str, axis: str) -> Shard:
        cut = self.shard(entry).of(self.workload.dim(axis))
        assert cut is not None, f"{axis} is one of the axes of {entry}"
        return cut

    def _outer(self, axis: str) -> Shard:
        if self.workload.axes[axis] >= self.ranks:
            return self._over_all(axis).joined(self.inner)
        return self._even(axis, self._groups)

    def _over_all(self, axis: str) -> Shard:
        if self.joint is None or self.other is None:
            return self._even(axis, self.ranks)
        return self.other.shard(self.joint, axis, self.ranks)

    def _even(self, axis: str, parts: int) -> Shard:
        return Shard.even(self.workload.dim(axis), self.workload.axes[axis], parts)
