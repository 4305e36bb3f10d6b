"""Any strategy across groups of neighbours that cut the weights: tensor parallelism inside.

    tp=2 on 8 ranks    0 1 | 2 3 | 4 5 | 6 7      cut the weights, as by Megatron-SP
                       0 2 4 6 | 1 3 5 7          share the sequence, each with half of the heads

For the strategy a group is one rank, which holds a part of the sequence. Between sublayers the
ranks of a group share that part; a projection in gathers it within the group, one out scatters the
sum. So a rank has 1 / tp of the weights, and of heads and columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol, final, runtime_checkable

from spbench.layers.heads import with_heads
from spbench.strategies.base import InGroups, Plan, Strategy
from spbench.strategies.refusals import grouped_why_not, groups_why_not, tp_why_not
from spbench.workload.mesh import TP
from spbench.workload.workload import Workload


@runtime_checkable
class CutsInGroups(Protocol):
    """A strategy that cuts weights over groups of ranks, whatever goes across them."""

    def in_groups(self, strategy: Strategy, across: Plan, workload: Workload, size: int) -> Plan:
        """The plan of ``strategy``: groups of ``size`` ranks, each of them a rank of ``across``."""


@final
@dataclass(frozen=True, kw_only=True)
class TensorGroups(InGroups):
    """``own``: the strategy across groups of ``tp`` neighbours, which go by ``cuts``."""

    tp: int
    cuts: Strategy

    def environment(self, capability: tuple[int, int]) -> dict[str, str]:
        return self.cuts.environment(capability) | self.own.environment(capability)

    def misfit(self, workload: Workload) -> str | None:
        return self.own.misfit(workload) or tp_why_not(workload, self.tp)

    def why_not(self, workload: Workload, ranks: int) -> str | None:
        unfit = groups_why_not(ranks, tp=str(self.tp)) or tp_why_not(workload, self.tp)
        if unfit:
            return unfit
        across = self._across_groups(workload, ranks)
        if apart := self.own.why_not(*across):
            return f"with each group of {TP}={self.tp} as one rank, {apart}"
        plan = self.own.on(*across)
        if plan.cuts_weights or plan.sends_itself:
            does = "sends by itself" if plan.sends_itself else "cuts the weights itself"
            return f"it {does}, and does not go across groups of {TP}={self.tp}; leave {TP} out"
        reasons = [self._fits(each, workload, ranks) for each in self._plans(*across)]
        return None if None in reasons else reasons[0]

    def on(self, workload: Workload, ranks: int) -> Plan:
        plans = self._plans(*self._across_groups(workload, ranks))
        plan = next(plan for plan in plans if self._fits(plan, workload, ranks) is None)
        settled = replace(self, own=plan.strategy)
        assert isinstance(self.cuts, CutsInGroups), "it makes such groups"
        return self.cuts.in_groups(settled, plan, workload, self.tp)

    def _plans(self, workload: Workload, ranks: int) -> Iterator[Plan]:
        """Its own choice, then the others, which are of the least bytes first."""
        yield self.own.on(workload, ranks)
        yield from sorted(self.own.alternatives(workload, ranks), key=lambda plan: plan.cost)

    def _across_groups(self, workload: Workload, ranks: int) -> tuple[Workload, int]:
        """What the strategy is asked about: the heads of the rank of a group that has the fewest,
        and the number of groups."""
        fewest = workload.key_heads // self.tp
        heads = fewest * (workload.heads // workload.key_heads)
        return with_heads(workload, heads, fewest), ranks // self.tp

    def _fits(self, plan: Plan, workload: Workload, ranks: int) -> str | None:
        """Why the ranks of a group cannot share what a rank of this plan holds; or None."""
        for axis in dict.fromkeys(plan.layout):
            if axis not in workload.axes:
                return f"two axes that are sharded at once ({axis}) are not shared by {TP} ranks"
            if unfit := grouped_why_not(axis, workload):
                return unfit
            length = workload.axes[axis]
            if length < ranks:
                limit = f"use 1 to {length} ranks"
                return f"{length} positions of {axis} cannot be split over {ranks} ranks; {limit}"
        return None
