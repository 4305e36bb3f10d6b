"""Any strategy on groups of ranks, each with its part of the branches of the guidance.

    cfg=2 on 8 ranks    branch 0    ranks 0 1 2 3, which share it by the strategy
                        branch 1    ranks 4 5 6 7

Branches are samples, and samples meet nowhere: between groups nothing is sent but the sum of the
gradients. So this is no option of strategies: the plan of a group knows only its group's workload,
which has fewer branches, and its group's ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import final

from spbench.strategies.base import Hops, Plan, Strategy
from spbench.text import counted
from spbench.workload.mesh import CFG, Mesh
from spbench.workload.sharding import Shard
from spbench.workload.traffic import Transfer, gradient_sums
from spbench.workload.workload import Workload


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class BranchPlan(Plan):
    """The plan of each group, several times; how axes and text are cut is a group's."""

    of_a_group: Plan

    @property
    def group(self) -> Plan:
        return self.of_a_group

    @property
    def groups(self) -> int:
        return self.ranks // self.group.ranks

    @cached_property
    def mesh(self) -> Mesh:
        # Outermost: ranks of a group are neighbours, since all they send is among themselves.
        return Mesh(((CFG, self.groups), *self.group.mesh.axes))

    @property
    def notes(self) -> str:
        return self.group.notes

    def shard(self, axis: str) -> Shard:
        return self.group.shard(axis)

    @cached_property
    def text(self) -> Shard:
        return self.group.text

    def hops(self, before: str, after: str) -> Hops | None:
        return self.group.hops(before, after)

    @cached_property
    def traffic(self) -> list[Transfer]:
        """What each group sends, all at once; and the gradients' sum over all ranks."""
        inside = self.mesh.without(CFG)
        name, members = "+".join(inside), self.mesh.groups(*inside)
        sent = [transfer for transfer in self.group.traffic if transfer.phase != "gradients"]
        # A stack repeats a few transfers, and what is equal stays one object.
        everywhere = {
            id(transfer): Transfer.along(name, members, [transfer] * self.groups)
            for transfer in sent
        }
        of_weights = self.cuts_weights, self.holds_whole
        sums = gradient_sums(self.group.workload, self.mesh, *of_weights)
        return [*(everywhere[id(transfer)] for transfer in sent), *sums]


@final
@dataclass(frozen=True, kw_only=True)
class BranchGroups(Strategy):
    """``own``: the strategy of each of ``cfg`` groups."""

    own: Strategy
    cfg: int

    def environment(self, capability: tuple[int, int]) -> dict[str, str]:
        return self.own.environment(capability)

    def flattened(self, workload: Workload) -> Workload:
        return self.own.flattened(workload)

    @property
    def only_measured(self) -> str | None:
        return self.own.only_measured

    @property
    def has_float32_copy(self) -> bool:
        return self.own.has_float32_copy

    @property
    def origin(self) -> str:
        return self.own.origin

    def misfit(self, workload: Workload) -> str | None:
        branches = workload.guidance
        if branches == 1:
            return f"{CFG}={self.cfg} needs branches of guidance, as with guidance={self.cfg}"
        if branches % self.cfg:
            fitting = [str(n) for n in range(1, branches + 1) if branches % n == 0]
            had = f"{branches} branches of guidance do not make {self.cfg} equal parts"
            return f"{had}; {CFG} may be {' or '.join(fitting)}"
        return self.own.misfit(self._of_a_group(workload))

    def why_not(self, workload: Workload, ranks: int) -> str | None:
        if ranks % self.cfg:
            several = f"use a multiple of {self.cfg} ranks"
            return f"{counted(ranks, 'rank')} do not make {self.cfg} groups for {CFG}; {several}"
        reason = self.own.why_not(self._of_a_group(workload), ranks // self.cfg)
        return f"in each of {self.cfg} groups: {reason}" if reason else None

    def on(self, workload: Workload, ranks: int) -> BranchPlan:
        of_a_group = self.own.on(self._of_a_group(workload), ranks // self.cfg)
        return BranchPlan(
            strategy=BranchGroups(own=of_a_group.strategy, cfg=self.cfg),
            workload=workload,
            ranks=ranks,
            layout=of_a_group.layout,
            of_a_group=of_a_group,
            cuts_weights=of_a_group.cuts_weights,
            holds_whole=of_a_group.holds_whole,
            ends_in_transfer=of_a_group.ends_in_transfer,
        )

    def _of_a_group(self, workload: Workload) -> Workload:
        """What one group computes."""
        return workload.model_copy(update={"guidance": workload.guidance // self.cfg})
