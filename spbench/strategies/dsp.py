"""Dynamic Sequence Parallelism (Zhao et al., ICML 2025): shard an axis that is not attended.

Attention along one axis never mixes positions of another. So while a sublayer attends along
one axis, another is sharded, and the sublayer needs no communication. Where the next one
attends along the sharded axis, one all-to-all moves the sharding elsewhere.

    attention over space    (B, T/N, S, H)
        switch              time whole again, space sharded: f M / N sent by each rank
    attention over time     (B, T, S/N, H)

So there is no communication code here: this file is a planner, and the model switches
wherever the layout changes. Attention over all axes joined leaves none to shard: among other
attentions another strategy serves there, at its true cost in the plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import final

from torch import Tensor

from spbench.comm.collectives import Collectives
from spbench.layers.attention import Scores
from spbench.strategies.base import Layout, Strategy
from spbench.strategies.cheapest_plan import cheapest_plan
from spbench.strategies.fixed_axis import AUTO, FixedAxis, Known
from spbench.strategies.joint_attention import exchange, fitting, joint_alone, none_fits
from spbench.strategies.refusals import across_misfit, nothing_to_switch, too_short
from spbench.strategies.registry import EXCHANGES
from spbench.workload.block import Sublayer
from spbench.workload.sharding import Shard
from spbench.workload.traffic import Traffic
from spbench.workload.workload import Workload


@final
@dataclass(frozen=True, kw_only=True)
class DSP(Strategy):
    """The layout of fewest bytes over the whole stack, switching as late as possible.

    ``across`` attends where all axes are joined: by default what sends the fewest bytes.
    """

    across: str = AUTO

    def misfit(self, workload: Workload) -> str | None:
        return across_misfit(self.across, (AUTO, *EXCHANGES))

    @cached_property
    def other(self) -> FixedAxis:
        """The strategy that attends where all axes are joined; ``settled`` has chosen it."""
        return exchange(self.across)

    def why_not(self, workload: Workload, ranks: int) -> str | None:
        joint = joint_alone(workload)
        if joint and len(joint.kinds) == len(workload.attentions):
            return nothing_to_switch(workload)
        for sublayer in workload.kinds:
            if not _free(sublayer, workload, ranks):
                return too_short(sublayer, workload, ranks)
        return None if joint is None else none_fits(self.across, joint, ranks)

    def settled(self, workload: Workload, ranks: int) -> DSP:
        if self.across != AUTO or joint_alone(workload) is None:
            return self
        return _cheapest(self, Known.of(workload), ranks)

    def notes(self, workload: Workload, ranks: int) -> str:
        if joint_alone(workload) is None:
            return ""
        why = ", which sends the fewest bytes" if self.across == AUTO else ""
        across = self.settled(workload, ranks).across
        return f"attention over all axes joined leaves none to shard: it goes by {across}{why}"

    def mesh(self, workload: Workload, ranks: int) -> Mapping[str, int]:
        joint = joint_alone(workload)
        if joint is None:
            return super().mesh(workload, ranks)
        return self.settled(workload, ranks).other.mesh(joint, ranks)

    def shard(self, workload: Workload, axis: str, ranks: int) -> Shard:
        joint = joint_alone(workload)
        if joint is None:
            return super().shard(workload, axis, ranks)
        return self.settled(workload, ranks).other.shard(joint, axis, ranks)

    def layout(self, workload: Workload, ranks: int) -> Layout:
        return cheapest_plan(self.settled(workload, ranks), workload, ranks).layout

    def choices(self, sublayer: Sublayer, workload: Workload, ranks: int) -> Sequence[str]:
        """Axes that are long enough and not attended; where all are attended, all long enough."""
        joint = joint_alone(workload)
        if joint is None or sublayer not in joint.kinds:
            return _free(sublayer, workload, ranks)
        return self.settled(workload, ranks).other.choices(sublayer, joint, ranks)

    def sublayer_traffic(
        self, sublayer: Sublayer, workload: Workload, axis: str, ranks: int
    ) -> Traffic:
        joint = joint_alone(workload)
        if joint is None or axis not in sublayer.attended:
            return super().sublayer_traffic(sublayer, workload, axis, ranks)
        other = self.settled(workload, ranks).other
        return other.sublayer_traffic(sublayer, joint, axis, ranks)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, scores: Scores, shard: Shard, comm: Collectives
    ) -> Tensor:
        if shard.dim in scores.dims:
            return self.other.attend(q, k, v, scores, shard, comm)
        return super().attend(q, k, v, scores, shard, comm)


def _free(sublayer: Sublayer, workload: Workload, ranks: int) -> list[str]:
    free = [a for a in workload.axes if a not in sublayer.attended] or list(workload.axes)
    return [axis for axis in free if workload.axes[axis] >= ranks]


@lru_cache(maxsize=100)
def _cheapest(strategy: DSP, known: Known, ranks: int) -> DSP:
    """With the exchange of the fewest bytes in a step; of several such the first."""
    joint = joint_alone(known.workload)
    assert joint is not None, "only attention that joins all axes needs an exchange"
    each = [replace(strategy, across=name) for name in fitting(strategy.across, joint, ranks)]
    return min(each, key=lambda one: round(cheapest_plan(one, known.workload, ranks).cost[0]))
