"""Groups of neighbours that cut the weights, and another strategy that attends across the groups.

The activation stays cut over all ranks. A group has its part of the sequence, heads and columns
shared out; ranks with the same heads attend across groups as if there were no others.

    {"ulysses": 2, "tp": 4}       groups 0 1 2 3 and 4 5 6 7 cut the weights; 0 4, 1 5, ... attend
"""

from abc import ABC
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import ClassVar, cast

from spbench.comm.collectives import Collectives
from spbench.layers.heads import traffic_across, with_heads
from spbench.strategies import refusals
from spbench.strategies.base import Strategy
from spbench.strategies.fixed_axis import AUTO, FixedAxis
from spbench.strategies.registry import EXCHANGES, load
from spbench.workload.block import Attention, Sublayer
from spbench.workload.mesh import Mesh
from spbench.workload.sharding import Shard, shard_sizes
from spbench.workload.traffic import Traffic
from spbench.workload.workload import Workload

TP = "tp"  # the axis of a mesh whose groups cut weights: its last


@dataclass(frozen=True, kw_only=True)
class TensorGroups(FixedAxis, ABC):
    """``tp`` neighbours cut the weights, by default all ranks; another strategy goes ``across``."""

    cuts_weights: ClassVar[bool] = True
    tp: str = AUTO
    across: str = EXCHANGES[0]
    rows: str = AUTO

    @cached_property
    def other(self) -> FixedAxis:
        """The strategy across groups."""
        rows = f":rows={self.rows}" if self.rows != AUTO else ""
        return cast("FixedAxis", load(f"{self.across}:shard-axis={self.shard_axis}{rows}"))

    def misfit(self, workload: Workload) -> str | None:
        unfit = refusals.across_misfit(self.across, EXCHANGES) or refusals.size_misfit(tp=self.tp)
        if unfit is None and self.tp == AUTO and self.across != EXCHANGES[0]:
            return f"across={self.across} needs groups to go across; write tp=2 beside it"
        return unfit or self.other.misfit(workload)

    def why_not(self, workload: Workload, ranks: int) -> str | None:
        if self.tp == AUTO:
            return refusals.cut_why_not(workload, ranks) or super().why_not(workload, ranks)
        unfit = refusals.tp_why_not(workload, int(self.tp))
        unfit = unfit or refusals.groups_why_not(ranks, tp=self.tp)
        unfit = unfit or self._outside(self.other.why_not(*self._part(workload, ranks)))
        return unfit or super().why_not(workload, ranks)

    def why_not_along(self, axis: str, workload: Workload, ranks: int) -> str | None:
        unfit = super().why_not_along(axis, workload, ranks)
        if unfit is not None or self.tp == AUTO:
            return unfit
        apart = self.other.why_not_along(axis, *self._part(workload, ranks))
        return refusals.grouped_why_not(axis, workload) or self._outside(apart)

    def _outside(self, why_not: str | None) -> str | None:
        """What the strategy across groups says, for which a group is a rank."""
        return why_not and f"with each group of tp={self.tp} as one rank, {why_not}"

    def _part(self, workload: Workload, ranks: int) -> tuple[Workload, int]:
        """The heads of the rank of a group that has the fewest, and the number of groups."""
        fewest = workload.key_heads // int(self.tp)
        heads = fewest * (workload.heads // workload.key_heads)
        return with_heads(workload, heads, fewest), ranks // int(self.tp)

    def others(self, workload: Workload, ranks: int) -> list[tuple[Strategy, Workload, int]]:
        return [] if self.tp == AUTO else [(self.other, *self._part(workload, ranks))]

    def _beside(self, workload: Workload, ranks: int) -> Strategy:
        """The strategy across groups, with what it chooses for that rank."""
        return self.other.settled(*self._part(workload, ranks))

    def settled(self, workload: Workload, ranks: int) -> "TensorGroups":
        if self.tp == AUTO or self.rows != AUTO:
            return self
        return replace(self, rows=self.other.settled_rows(*self._part(workload, ranks)))

    def mesh(self, workload: Workload, ranks: int) -> dict[str, int]:
        if self.tp == AUTO:
            return dict(super().mesh(workload, ranks))
        across, size = self.other.mesh(*self._part(workload, ranks)), int(self.tp)
        return {**(across if len(across) > 1 else {self.across: ranks // size}), TP: size}

    def has_own_queries(self, workload: Workload, ranks: int) -> bool:
        return self.tp != AUTO and self.other.has_own_queries(*self._part(workload, ranks))

    def shard(self, workload: Workload, axis: str, ranks: int) -> Shard:
        if self.tp == AUTO:
            return super().shard(workload, axis, ranks)
        size = int(self.tp)
        return self._beside(workload, ranks).shard(workload, axis, ranks // size).split(size)

    def text_shard(self, workload: Workload, ranks: int) -> Shard:
        if self.tp == AUTO:
            return super().text_shard(workload, ranks)
        size = int(self.tp)
        return self._beside(workload, ranks).text_shard(workload, ranks // size).split(size)

    def inside(self, shard: Shard) -> Shard | None:
        """Every rank of a group has all of the group's positions."""
        if self.tp == AUTO:
            return None
        groups = [rank // int(self.tp) for rank in range(len(shard.runs))]
        return shard.joined(int(self.tp)).among(groups)

    def notes(self, workload: Workload, ranks: int) -> str:
        if self.tp == AUTO:
            return super().notes(workload, ranks)
        (axis,) = set(self.layout(workload, ranks))
        said = replace(self.other, shard_axis=axis).notes(*self._part(workload, ranks))
        return f"of groups {said}" if said else ""

    def group(self, comm: Collectives, shard: Shard) -> tuple[Collectives, Shard]:
        """The collectives of a rank's group, and how what the group holds is cut."""
        if self.tp == AUTO:
            return comm, shard
        return comm.along(TP), shard.among(comm.mesh.members(comm.rank, TP))

    def traffic_across(
        self, sublayer: Sublayer, workload: Workload, axis: str, mesh: Mesh
    ) -> Traffic:
        """Transfers of an attention along ``axis`` across the groups of ``mesh``."""
        if not isinstance(sublayer, Attention) or axis not in sublayer.attended:
            return [], []
        groups, keys = mesh.size // int(self.tp), shard_sizes(workload.key_heads, int(self.tp))
        shares = [(n * (workload.heads // workload.key_heads), n) for n in keys]
        beside = self._beside(workload, mesh.size)
        across = partial(beside.sublayer_traffic, sublayer, axis=axis, ranks=groups)
        return traffic_across(workload, mesh, shares.__getitem__, across)
