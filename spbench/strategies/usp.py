"""USP (Fang and Zhao, 2024): heads shared out among neighbours, another exchange across them.

In a group of U neighbours the sharded axis becomes whole and heads are shared out, as in Ulysses.
Across groups, ranks with the same heads attend as in a ring, a K/V gather or Attention2D.

    q, k, v   (B, S/N, Z, D)   --switch in the group-->   (B, U S/N, Z/U, D)
    out       (B, U S/N, Z/U, D)   --switch-->   (B, S/N, Z, D)         (U - 1) / U of M / N sent
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import ClassVar, final

from torch import Tensor

from spbench.comm.collectives import Collectives
from spbench.layers.attention import Scores
from spbench.layers.heads import (
    HEADS,
    all_heads,
    attend_by_heads,
    of_first,
    share_heads,
    traffic_by_heads,
    traffic_in_groups,
)
from spbench.strategies import refusals
from spbench.strategies.fixed_axis import AUTO, TOKENS, FixedAxis, FixedPlan, padding_in_words
from spbench.strategies.registry import ACROSS, exchange
from spbench.workload.block import Attention, Sublayer
from spbench.workload.mesh import Mesh
from spbench.workload.sharding import Shard, shard_sizes
from spbench.workload.traffic import Traffic, Transfer, in_a_step, waited_bytes
from spbench.workload.workload import Workload


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class USPPlan(FixedPlan):
    """Groups of ``size`` neighbours, and the plan of another strategy across them."""

    strategy: USP
    size: int
    across: FixedPlan
    """For the heads of a group's first rank, which has the most; a group is one rank of it."""

    @property
    def queries_stay(self) -> bool:
        return self.size < self.ranks

    @cached_property
    def mesh(self) -> Mesh:
        return self.across.mesh.divided(HEADS, self.size, alone=self.strategy.across)

    @property
    def unevenness(self) -> float:
        padded = all_heads(self.workload, self.size, self.strategy.padded)
        # Rank 0 of a group: whoever has a head more comes first.
        most = share_heads(padded.heads, padded.key_heads, self.size).queries[0]
        return most * self.size / self.workload.heads  # 5 heads on 2 ranks: 3 where 2.5 is the mean

    @property
    def least_cost(self) -> float:
        """At most ``cost``, from a step of the first group of ranks, without a look at the others.

        A transfer waits for its busiest rank, which sends no less than those of the first group do.
        """
        padded = all_heads(self.workload, self.size, self.strategy.padded)
        total = 0.0
        for place, times in Counter(self.workload.places).items():
            attention = place.sublayer
            if not isinstance(attention, Attention) or self.axis not in attention.attended:
                continue
            # Text is shared out by itself: what a rank has of both is not as even as the sum.
            first = shard_sizes(self.across.held(self.axis)[0], self.size)
            held = self.held(self.axis)[: self.size] if self.workload.text else first
            (there, out), (back, home) = traffic_by_heads(attention, padded, self.axis, held)
            forward, backward = self.across.sublayer_traffic(attention, self.axis)
            own = [there, *forward, out], [back, *backward, home]
            again = [there, *self.across.attended_again(attention, self.axis)]
            sent = in_a_step(self.workload, place, own, ([], []), self.ends_in_transfer, again)
            total += times * waited_bytes(sent)
        return total * self.unevenness

    def shard(self, axis: str) -> Shard:
        return self.across.shard(axis).split(self.size)

    @cached_property
    def text(self) -> Shard:
        return self.across.text.split(self.size)

    @property
    def notes(self) -> str:
        padding = padding_in_words(self.workload, self.size, self.strategy.padded)
        return padding or self.across.notes

    def pairs(self, attention: Attention, rank: int) -> int:
        return self.across.pairs(attention, rank // self.size)  # its group's, of some heads

    def sublayer_traffic(self, sublayer: Sublayer, axis: str) -> Traffic:
        if not isinstance(sublayer, Attention) or axis not in sublayer.attended:
            return super().sublayer_traffic(sublayer, axis)

        def across(attention: Attention, part: Workload, axis: str) -> Traffic:
            # The same rows of ranks, whatever heads a rank has.
            return self.across.with_heads_of(part).sublayer_traffic(attention, axis)

        held, pads = self.held(axis), self.strategy.padded
        return traffic_in_groups(sublayer, self.workload, axis, held, self.mesh, across, pads)

    def sent_by_attend(self, sublayer: Sublayer, axis: str) -> list[Transfer]:
        sent = super().sent_by_attend(sublayer, axis)
        if not isinstance(sublayer, Attention) or axis not in sublayer.attended:
            return sent
        return sent[:-1]  # the result's way home comes last, and its backward needs nothing

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, scores: Scores, shard: Shard, comm: Collectives
    ) -> Tensor:
        if shard.dim not in scores.dims or comm.size == 1:
            return super().attend(q, k, v, scores, shard, comm)
        group, others = comm.along(HEADS), comm.along(*comm.mesh.without(HEADS))
        held = shard.among(comm.mesh.members(comm.rank, HEADS))
        # Inside a group the axis is whole; across groups each of them is as one rank.
        across = partial(self.across.attend, shard=shard.joined(group.size), comm=others)
        return attend_by_heads(q, k, v, scores, held, group, across, self.strategy.padded)


@final
@dataclass(frozen=True, kw_only=True)
class USP(FixedAxis):
    """Groups of ``ulysses`` ranks, by default for the fewest bytes; ``padded``: of equal heads."""

    forms: ClassVar[tuple[str, ...]] = ("ulysses=2", "padded", "balance=work")
    plan: ClassVar[type[USPPlan]] = USPPlan
    ulysses: str = AUTO
    across: str = ACROSS[0]
    rows: str = AUTO
    balance: str = TOKENS
    padded: bool = False

    @property
    def other(self) -> FixedAxis:
        """The strategy across groups."""
        options = {"shard_axis": self.shard_axis, "rows": self.rows, "balance": self.balance}
        return exchange(self.across, **options)

    def misfit(self, workload: Workload) -> str | None:
        unfit = refusals.across_misfit(self.across, ACROSS)
        return unfit or refusals.size_misfit(ulysses=self.ulysses) or self.other.misfit(workload)

    def why_not(self, workload: Workload, ranks: int) -> str | None:
        if self.ulysses == AUTO:
            unfit = super().why_not(workload, ranks)
            return unfit or self._no_size_fits(workload, ranks)
        unfit = refusals.groups_why_not(ranks, ulysses=self.ulysses)
        if not unfit:
            size = int(self.ulysses)
            unfit = refusals.heads_why_not(workload, size)
            unfit = unfit or self.other.why_not(workload, ranks // size)
        return unfit or super().why_not(workload, ranks)

    def _no_size_fits(self, workload: Workload, ranks: int) -> str | None:
        """What the smallest groups lack, if groups of no size can run it; or None."""
        # Largest first, so that the last reason is that of one rank a group, which has the fewest
        # needs.
        reasons = [sized.why_not(workload, ranks) for sized in self._sizes(ranks)]
        return None if None in reasons else reasons[-1]

    def why_not_along(self, axis: str, workload: Workload, ranks: int) -> str | None:
        unfit = refusals.grouped_why_not(axis, workload)
        unfit = unfit or self.other.why_not_along(axis, workload, 1)
        return super().why_not_along(axis, workload, ranks) or unfit

    def _sizes(self, ranks: int) -> list[USP]:
        """With groups of each size written out, the largest first."""
        return [replace(self, ulysses=str(size)) for size in reversed(refusals.divisors(ranks))]

    def along(self, axis: str, workload: Workload, ranks: int) -> USPPlan:
        size = int(self.ulysses)
        first = of_first(workload, size, self.padded)
        return USPPlan(
            strategy=self,
            workload=workload,
            ranks=ranks,
            layout=(axis,) * len(workload.stack),
            size=size,
            across=self.other.along(axis, workload, ranks // size).with_heads_of(first),
        )

    def alternatives(self, workload: Workload, ranks: int) -> Sequence[FixedPlan]:
        """Groups of every size that it can run in, the largest first."""
        if self.ulysses != AUTO:
            return self._with_rows(workload, ranks).on_each_axis(workload, ranks)
        return [sized.on_cheapest_axis(workload, ranks) for sized in self._fitting(workload, ranks)]

    def on(self, workload: Workload, ranks: int) -> FixedPlan:
        """Groups for the fewest bytes of a step, times the unevenness of heads; of several such the
        largest. Heads that do not divide cost a rank more time than any link gives back."""
        if self.ulysses != AUTO:
            return self._with_rows(workload, ranks).on_cheapest_axis(workload, ranks)
        fitting = self._fitting(workload, ranks)
        least = [
            min(
                sized.along(axis, workload, ranks).least_cost
                for axis in sized.axes(workload, ranks)
            )
            for sized in fitting
        ]
        # Sizes that cost least at best come first: then most of 30,000 ranks' 50 sizes need no look
        # at all ranks. The number of a size decides between equals: the largest comes first there.
        by_least = sorted(range(len(fitting)), key=least.__getitem__)
        costs: dict[int, float] = {}
        plans: dict[int, FixedPlan] = {}
        for number in by_least:
            if costs and least[number] > min(costs.values()):
                break
            plans[number] = fitting[number].on_cheapest_axis(workload, ranks)
            costs[number] = plans[number].cost
        return plans[min(costs, key=lambda number: (costs[number], number))]

    def _fitting(self, workload: Workload, ranks: int) -> list[USP]:
        """With groups of each size that it can run in, and their rows, the largest first."""
        fit = (sized for sized in self._sizes(ranks) if sized.why_not(workload, ranks) is None)
        return [sized._with_rows(workload, ranks) for sized in fit]

    def _with_rows(self, workload: Workload, ranks: int) -> USP:
        """With the rows that the strategy across groups has for the heads of a group's first."""
        size = int(self.ulysses)
        first = of_first(workload, size, self.padded)
        return replace(self, rows=self.other.on(first, ranks // size).rows)
