"""Any strategy on groups of ranks, each with its part of the branches of the guidance.

    cfg=2 on 8 ranks    branch 0    ranks 0 1 2 3, which share it by the strategy
                        branch 1    ranks 4 5 6 7

Branches are samples, and samples meet nowhere: between groups nothing is sent but the sum of the
gradients. So this is no option of strategies: one that is run so knows only its group's workload,
which has fewer branches, and its group's ranks.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import final

from spbench.strategies.base import Layout, Strategy
from spbench.text import counted
from spbench.workload.mesh import CFG, Mesh
from spbench.workload.traffic import Transfer, gradient_sums
from spbench.workload.workload import Workload


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

    def misfit(self, workload: Workload) -> str | None:
        branches = workload.guidance
        if branches == 1:
            return f"{CFG}={self.cfg} needs branches of guidance, as with guidance={self.cfg}"
        if branches % self.cfg:
            fitting = [str(n) for n in range(1, branches + 1) if branches % n == 0]
            had = f"{branches} branches of guidance do not make {self.cfg} equal parts"
            return f"{had}; {CFG} may be {' or '.join(fitting)}"
        return self.own.misfit(self.part_of(workload))

    def why_not(self, workload: Workload, ranks: int) -> str | None:
        if ranks % self.cfg:
            several = f"use a multiple of {self.cfg} ranks"
            return f"{counted(ranks, 'rank')} do not make {self.cfg} groups for {CFG}; {several}"
        reason = self.own.why_not(self.part_of(workload), ranks // self.cfg)
        return f"in each of {self.cfg} groups: {reason}" if reason else None

    def in_a_group(self, workload: Workload, ranks: int) -> tuple[Strategy, Workload, int]:
        return self.own, self.part_of(workload), ranks // self.cfg

    def part_of(self, workload: Workload) -> Workload:
        """What one group computes."""
        return workload.model_copy(update={"guidance": workload.guidance // self.cfg})

    def settled(self, workload: Workload, ranks: int) -> "BranchGroups":
        return replace(self, own=self.own.settled(self.part_of(workload), ranks // self.cfg))

    def mesh(self, workload: Workload, ranks: int) -> Mapping[str, int]:
        return {CFG: self.cfg, **self.own.mesh(self.part_of(workload), ranks // self.cfg)}

    def layout(self, workload: Workload, ranks: int) -> Layout:
        return self.own.layout(self.part_of(workload), ranks // self.cfg)

    def notes(self, workload: Workload, ranks: int) -> str:
        return self.own.notes(self.part_of(workload), ranks // self.cfg)

    def traffic(self, workload: Workload, ranks: int) -> list[Transfer]:
        """What each group sends, all at once; and the gradients' sum over all ranks."""
        part, mesh = self.part_of(workload), Mesh.of(self.mesh(workload, ranks))
        inside = mesh.without(CFG)
        name, groups = "+".join(inside), mesh.groups(*inside)
        sent = [x for x in self.own.traffic(part, ranks // self.cfg) if x.phase != "gradients"]
        kinds = {id(x): Transfer.along(name, groups, [x] * self.cfg) for x in sent}
        sums = gradient_sums(part, mesh, self.own.cuts_weights, self.own.holds_whole)
        return [*(kinds[id(x)] for x in sent), *sums]
