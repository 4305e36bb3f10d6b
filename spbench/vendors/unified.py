"""Adapters of packages that share heads among neighbours, and pass keys round a ring across them.

The option ``ulysses`` says how many neighbours; 1 is a ring of all ranks. By default as many as
heads divide by, while a ring of two or more is left: with all ranks it would be Ulysses alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from spbench.strategies.fixed_axis import AUTO, FixedPlan
from spbench.strategies.refusals import divisors, size_misfit
from spbench.vendors.vendor import HeadTailPlan, Vendor, float32_times, switches
from spbench.workload.sharding import Shard, Sizes
from spbench.workload.traffic import Traffic
from spbench.workload.workload import Workload


@dataclass(frozen=True, kw_only=True, eq=False)
class NeighboursPlan(HeadTailPlan):
    """Neighbours hold parts of what a rank of the ring would hold."""

    strategy: RingAcross

    def shard(self, axis: str) -> Shard:
        work, size = self.workload, self.strategy.neighbours
        cut = Shard.causal if self.zigzag and work.is_causal(axis) else Shard.even
        return cut(work.dim(axis), work.axes[axis], self.ranks // size).split(size)


@dataclass(frozen=True, kw_only=True)
class RingAcross(Vendor, ABC):
    """A ring of all ranks, or of groups of neighbours."""

    plan: ClassVar[type[NeighboursPlan]] = NeighboursPlan

    @property
    def neighbours(self) -> int:
        """Those that share the heads."""
        return 1

    def sharers(self, axis: str, workload: Workload, ranks: int) -> int:
        return self.neighbours

    def sent(self, workload: Workload, sizes: Sizes) -> Traffic:
        ranks, size = len(sizes), self.neighbours
        moved = switches(workload, ranks, size) if size > 1 else []
        # N / U groups pass on keys of Z / U heads: each time 1 / N of all.
        keys, wide = 2 * workload.key_bytes, float32_times(workload)
        there, back = self.ring_sent(keys, wide, ranks, ranks // size)
        return moved + there, back + moved

    @abstractmethod
    def ring_sent(self, keys: int, wide: int, ranks: int, groups: int) -> Traffic:
        """The transfers of the ring, of which a block is 1 / ``ranks`` of all keys and values.

        Parameters
        ----------
        keys
            Bytes of all keys and values.
        wide
            What their gradients take for each of their bytes, in float32.
        ranks, groups
            All ranks, and those of one ring.
        """


@dataclass(frozen=True, kw_only=True)
class Unified(RingAcross, ABC):
    """``ulysses`` neighbours share the heads."""

    ulysses: str = AUTO

    @property
    def neighbours(self) -> int:
        return int(self.ulysses)

    def misfit(self, workload: Workload) -> str | None:
        return size_misfit(ulysses=self.ulysses) or super().misfit(workload)

    def why_not(self, workload: Workload, ranks: int) -> str | None:
        fit = divisors(ranks)[:-1] or [1]
        if self.ulysses != AUTO and int(self.ulysses) not in fit:
            return (
                f"{ranks} ranks do not form two groups or more of ulysses={self.ulysses}, which a "
                f"ring goes across; ulysses may be {', '.join(map(str, fit))}"
            )
        return super().why_not(workload, ranks)

    def sharers(self, axis: str, workload: Workload, ranks: int) -> int:
        if self.ulysses != AUTO:
            return int(self.ulysses)
        heads, keys, length = workload.heads, workload.key_heads, workload.axes[axis]
        fit = [
            n
            for n in divisors(ranks)[:-1]
            if not heads % n and not keys % n and not length % self.parts(axis, workload, ranks, n)
        ]
        return max(fit, default=1)

    def on_each_axis(self, workload: Workload, ranks: int) -> Sequence[FixedPlan]:
        plans = []
        for axis in self.axes(workload, ranks):
            settled = replace(self, ulysses=str(self.sharers(axis, workload, ranks)))
            plans.append(settled.along(axis, workload, ranks))
        return plans
