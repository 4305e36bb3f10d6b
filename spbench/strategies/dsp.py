"""Dynamic Sequence Parallelism (Zhao et al., ICML 2025): shard an axis that is not attended.

Attention along one axis never mixes positions of another. So while a sublayer attends along
one axis, another is sharded, and the sublayer needs no communication. Where the next one
attends along the sharded axis, one all-to-all moves the sharding elsewhere.

    attention over space    (B, T/N, S, H)
        switch              time whole again, space sharded: f M / N sent by each rank
    attention over time     (B, T, S/N, H)

So there is no communication code here: this file is a planner, and the model switches
wherever the layout changes. Two axes may be sharded at once (``two_axes.py``). Attention over
all axes joined leaves none to shard: another strategy attends in that sublayer, at its true cost.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from operator import itemgetter
from typing import ClassVar, final

from torch import Tensor

from spbench.comm.collectives import Collectives
from spbench.layers.attention import Scores
from spbench.strategies import switch_choices
from spbench.strategies.base import Layout, Strategy
from spbench.strategies.cheapest_plan import Plan, cheapest_plan
from spbench.strategies.fixed_axis import AUTO, Known
from spbench.strategies.joint_attention import exchange, joint_alone
from spbench.strategies.refusals import across_misfit, groups_why_not, size_misfit
from spbench.strategies.registry import EXCHANGES
from spbench.strategies.two_axes import TwoAxes
from spbench.workload.block import Sublayer
from spbench.workload.sharding import Shard
from spbench.workload.traffic import Hop, Traffic
from spbench.workload.workload import Workload

MOST = 8
"""Settings that are weighed at most, those of the smallest inner groups."""


@final
@dataclass(frozen=True, kw_only=True)
class DSP(Strategy):
    """The layout of fewest bytes over the whole stack, switching as late as possible.

    ``across`` attends where all axes are joined; with ``inner`` above 1 two axes may be sharded at
    once, one within groups of so many ranks: by default where one is not enough.
    """

    forms: ClassVar[tuple[str, ...]] = ("inner=2",)
    across: str = AUTO
    inner: str = AUTO

    @property
    def settings(self) -> switch_choices.Settings:
        """Both options."""
        return switch_choices.Settings(self.across, self.inner)

    def misfit(self, workload: Workload) -> str | None:
        return size_misfit(inner=self.inner) or across_misfit(self.across, (AUTO, *EXCHANGES))

    def why_not(self, workload: Workload, ranks: int) -> str | None:
        unfit = groups_why_not(ranks, inner=self.inner)
        if unfit or _cheapest(self, Known.of(workload), ranks):
            return unfit
        return switch_choices.none_is_enough(self.settings, workload, ranks)

    def settled(self, workload: Workload, ranks: int) -> "DSP":
        if AUTO not in (self.across, self.inner):
            return self
        return _cheapest(self, Known.of(workload), ranks) or self

    def alternatives(self, workload: Workload, ranks: int) -> "list[DSP]":
        """Each exchange where all axes are joined, in each size of inner groups that is allowed."""
        if AUTO not in (self.across, self.inner):
            return []
        fit = switch_choices.fitting_settings(self.settings, workload, ranks)
        each = (replace(self, **settings._asdict()) for settings in fit)
        return [one for one in each if _plan(one, Known.of(workload), ranks) is not None]

    def others(self, workload: Workload, ranks: int) -> list[tuple[Strategy, Workload, int]]:
        joint = joint_alone(workload)
        if joint is None:
            return []
        return [(exchange(self.settled(workload, ranks).across), joint, ranks)]

    def notes(self, workload: Workload, ranks: int) -> str:
        chosen = self.settled(workload, ranks).settings
        return switch_choices.notes_of(chosen, self.settings, workload)

    def _cuts(self, workload: Workload, ranks: int) -> TwoAxes:
        chosen = self.settled(workload, ranks).settings
        return switch_choices.two_axes(chosen, Known.of(workload), ranks)

    def mesh(self, workload: Workload, ranks: int) -> Mapping[str, int]:
        return self._cuts(workload, ranks).mesh

    def shard(self, workload: Workload, axis: str, ranks: int) -> Shard:
        return self._cuts(workload, ranks).shard(axis)

    def hops(self, workload: Workload, before: str, after: str, ranks: int) -> Sequence[Hop] | None:
        return self._cuts(workload, ranks).hops(before, after)

    def layout(self, workload: Workload, ranks: int) -> Layout:
        plan = _plan(self.settled(workload, ranks), Known.of(workload), ranks)
        assert plan is not None, "what is settled has a plan"
        return plan.layout

    def choices(self, sublayer: Sublayer, workload: Workload, ranks: int) -> Sequence[str]:
        chosen = self.settled(workload, ranks).settings
        return switch_choices.choices(chosen, sublayer, workload, ranks)

    def sublayer_traffic(
        self, sublayer: Sublayer, workload: Workload, axis: str, ranks: int
    ) -> Traffic:
        joint = joint_alone(workload)
        if joint is None or axis not in sublayer.attended:
            return super().sublayer_traffic(sublayer, workload, axis, ranks)
        other = exchange(self.settled(workload, ranks).across)
        return other.sublayer_traffic(sublayer, joint, axis, ranks)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, scores: Scores, shard: Shard, comm: Collectives
    ) -> Tensor:
        if shard.dim in scores.dims:  # which it is where all are; ``settled`` has named the other
            return exchange(self.across).attend(q, k, v, scores, shard, comm)
        return super().attend(q, k, v, scores, shard, comm)


@lru_cache(maxsize=100)
def _plan(strategy: DSP, known: Known, ranks: int) -> Plan | None:
    return cheapest_plan(strategy, known.workload, ranks)


@lru_cache(maxsize=100)
def _cheapest(strategy: DSP, known: Known, ranks: int) -> DSP | None:
    """With the settings of the fewest bytes in a step; None: with none is there a plan."""
    fit = switch_choices.fitting_settings(strategy.settings, known.workload, ranks)
    each = (replace(strategy, **settings._asdict()) for settings in fit)
    plans = ((round(plan.cost[0]), one) for one in each if (plan := _plan(one, known, ranks)))
    return min(islice(plans, MOST), key=itemgetter(0), default=(0, None))[1]
