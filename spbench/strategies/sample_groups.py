"""Any strategy on groups of ranks, each with samples of its own: data parallelism.

    dp=2,cfg=2 on 8 ranks    half of the batch    branch 0 of the guidance    ranks 0 1
                                                  branch 1                    ranks 2 3
                             the other half       branch 0                    ranks 4 5
                                                  branch 1                    ranks 6 7

The ranks of a group share its samples by the strategy. Samples meet nowhere, and branches of the
guidance are samples: between groups nothing is sent but the sum of the gradients. So this is no
option of strategies: the plan of a group knows only its group's workload, which has fewer samples,
and its group's ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import final

from spbench.strategies.base import InGroups, PlanOfGroups
from spbench.strategies.refusals import divisors
from spbench.text import counted
from spbench.workload.mesh import CFG, DP, CaseMesh, Mesh
from spbench.workload.stages import Stages
from spbench.workload.traffic import Transfer
from spbench.workload.workload import Workload


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class SamplePlan(PlanOfGroups):
    """The plan of each group, several times; how axes and text are cut is a group's."""

    groups: CaseMesh

    @property
    def stages(self) -> Stages | None:
        return self.inner.stages

    @cached_property
    def mesh(self) -> Mesh:
        # Outermost: ranks of a group are neighbours, since all they send is among themselves.
        return Mesh((*self.groups.axes, *self.inner.mesh.axes))

    @cached_property
    def of_blocks(self) -> list[list[Transfer]]:
        """What each group sends, all at once."""
        return [self._everywhere(block) for block in self.inner.of_blocks]

    @cached_property
    def of_sublayers(self) -> list[Transfer]:
        return self._everywhere(self.inner.of_sublayers)

    def _everywhere(self, sent: list[Transfer]) -> list[Transfer]:
        return [self._of_all_groups[id(transfer)] for transfer in sent]

    @cached_property
    def _of_all_groups(self) -> dict[int, Transfer]:
        """What a group sends, by all: what is equal stays one object, of which a stack has few."""
        inside = self.inner.mesh.names
        name, members = "+".join(inside), self.mesh.groups(*inside)
        return {
            id(transfer): Transfer.along(name, members, [transfer] * len(members))
            for transfer in self.inner.of_sublayers
        }


@final
@dataclass(frozen=True, kw_only=True)
class SampleGroups(InGroups):
    """``own``: the strategy of each of the groups of ``around``."""

    around: CaseMesh

    def misfit(self, workload: Workload) -> str | None:
        cfg, dp = self.around.cfg, self.around.dp
        if cfg > 1 and workload.guidance == 1:
            return f"{CFG}={cfg} needs branches of guidance, as with guidance={cfg}"
        guidance, batch = workload.guidance, workload.batch
        unfit = _why_uneven(CFG, cfg, guidance, f"{counted(guidance, 'branch')} of guidance")
        if too_few := _why_uneven(DP, dp, batch, f"{counted(batch, 'sample')} in a batch"):
            unfit = unfit or f"{too_few}, or the batch a multiple of {dp}"
        return unfit or self.own.misfit(self._of_a_group(workload))

    def why_not(self, workload: Workload, ranks: int) -> str | None:
        groups = self.around.groups
        if ranks % groups:
            axes = " x ".join(axis for axis, _ in self.around.axes)
            had = f"{counted(ranks, 'rank')} do not make {groups} groups for {axes}"
            return f"{had}; use a multiple of {groups} ranks"
        reason = self.own.why_not(self._of_a_group(workload), ranks // groups)
        return f"in each of {groups} groups: {reason}" if reason else None

    def why_not_streams(self, workload: Workload, ranks: int) -> str | None:
        groups = self.around.groups
        if ranks % groups:
            return None  # there are no groups to share them out in: ``why_not``
        return self.own.why_not_streams(self._of_a_group(workload), ranks // groups)

    def on(self, workload: Workload, ranks: int) -> SamplePlan:
        of_a_group = self.own.on(self._of_a_group(workload), ranks // self.around.groups)
        return SamplePlan.around(
            of_a_group,
            strategy=SampleGroups(own=of_a_group.strategy, around=self.around),
            workload=workload,
            ranks=ranks,
            groups=self.around,
        )

    def _of_a_group(self, workload: Workload) -> Workload:
        """What one group computes."""
        guidance, batch = workload.guidance // self.around.cfg, workload.batch // self.around.dp
        return workload.model_copy(update={"guidance": guidance, "batch": batch})


def _why_uneven(axis: str, groups: int, count: int, those: str) -> str | None:
    """Why so many groups cannot share ``count`` of something; or None. ``those``: what they are."""
    if count % groups == 0:
        return None
    fitting = [str(n) for n in divisors(count)]
    had = f"{those} cannot make {groups} equal parts"
    return f"{had}; {axis} may be {' or '.join(fitting)}"
