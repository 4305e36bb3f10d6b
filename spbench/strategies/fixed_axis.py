"""The base of strategies with one fixed sharded axis: its choice, and whether it is long enough.

Ulysses, Megatron-SP and the rings keep one axis sharded from the first sublayer to the last
and do their work inside attention or the projections. So a plan is one axis, and the choice among
plans is that of the axis: fewest bytes, then most even shards, then long rows of queries.
"""

from __future__ import annotations

from abc import ABC
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Self, final

from spbench.layers.heads import all_heads
from spbench.strategies.base import Plan, Strategy
from spbench.workload.balance import PositionWork, by_work
from spbench.workload.block import Attention
from spbench.workload.edges import Edges
from spbench.workload.flattened import flattened
from spbench.workload.mask import Mask, Runs, held
from spbench.workload.sharding import Shard
from spbench.workload.traffic import Move, waited_bytes
from spbench.workload.workload import Workload

AUTO = "auto"
"""The value of an option that the strategy chooses by itself."""
NEARLY_EVEN = 1.05
"""Operations of the busiest rank over the mean that no note speaks of."""
CHUNK_BYTES, MOST_CHUNKS = 2**20, 4
"""What ``auto`` sends a rank at once, at least, and in how many chunks, at most."""


def chunks_of(option: str, whole_bytes: int, ranks: int) -> int:
    """In how many chunks an all-to-all of so many bytes, over all ranks, goes by an option.

    ``auto``: of messages of a mebibyte, since shorter ones cost more than what they hide.
    """
    if option != AUTO:
        return int(option)
    return max(1, min(MOST_CHUNKS, whole_bytes // ranks**2 // CHUNK_BYTES))


@dataclass(frozen=True, kw_only=True, eq=False)
class FixedPlan(Plan, ABC):
    """One axis, sharded in every sublayer."""

    strategy: FixedAxis
    zigzag: ClassVar[bool] = False
    """Whether ranks hold zigzag shards of a causal axis, so that all compute as much."""

    @property
    def axis(self) -> str:
        """The sharded one."""
        return self.layout[0]

    @property
    def queries_stay(self) -> bool:
        """Whether a rank attends along the sharded axis with its own queries alone: the more there
        are in a row, the fuller are a kernel's tiles, which have 64 rows and more."""
        return False

    @property
    def rows(self) -> str:
        """The rows of ranks that it has, as an option; ``auto``: it has none."""
        return AUTO

    def shard(self, axis: str) -> Shard:
        cut = Shard.causal if self.zigzag and self.workload.grows_along(axis) else Shard.even
        return cut(self.workload.dim(axis), self.workload.axes[axis], self.ranks)

    @final
    def edges(self, attention: Attention) -> Edges | None:
        """What ranks need of each other's positions under its mask; None: it has none."""
        shown = self.shown(attention)
        return shown and Edges.of(shown[1], shown[0])

    def pairs(self, attention: Attention, rank: int) -> int:
        """Pairs of query and key that a rank computes under a mask; 0: there is none."""
        shown = self.shown(attention)
        return shown[0].pairs(shown[1][rank]) if shown else 0

    @final
    def shown(self, attention: Attention) -> tuple[Mask, tuple[Runs, ...]] | None:
        """The mask of an attention along the sharded axis, and each rank's positions; None: there
        is none."""
        mask = self.workload.mask(attention)
        if mask is None or self.axis not in attention.axes:
            return None
        axes = [each for each in self.workload.axes if each in attention.axes]
        lengths = tuple(self.workload.axes[each] for each in axes)
        return mask, held(self.shard(self.axis), lengths, axes.index(self.axis))

    @property
    def notes(self) -> str:
        masked = self.zigzag and self.ranks > 1 and self.workload.grows_along(self.axis)
        return self.shard(self.axis).in_words(self.axis) if masked else ""

    def with_heads_of(self, part: Workload) -> FixedPlan:
        """Its options, axis and ranks, for a workload that differs in its heads alone."""
        return self.strategy.along(self.axis, part, self.ranks)

    @final
    @cached_property
    def waited_bytes(self) -> float:
        """Bytes that a step waits for, without the gradients' sum: a stack repeats a few places."""
        return sum(
            times * waited_bytes(self.transfers_of(Move(place, self.axis, self.axis)))
            for place, times in Counter(self.workload.places).items()
        )

    @final
    @property
    def preference(self) -> tuple[float, float, int]:
        """The axis of fewest bytes; among equals the most evenly shared, where queries stay the
        longest, then the outermost."""
        length = self.workload.axes[self.axis] if self.queries_stay else 0
        # min compares them in turn; the negated length makes the longest the least.
        return self.waited_bytes, self.shard(self.axis).imbalance, -length


@dataclass(frozen=True, kw_only=True)
class FixedAxis(Strategy, ABC):
    """One axis stays sharded: the cheapest, or the option ``shard_axis``.

    A subclass names the class of its plans, and may say in ``why_not_along`` what else they need.
    """

    plan: ClassVar[type[FixedPlan]]
    shard_axis: str = AUTO

    def flattened(self, workload: Workload) -> Workload:
        """An axis that ``shard_axis`` names is cut by itself."""
        return flattened(workload, apart=() if self.shard_axis == AUTO else (self.shard_axis,))

    def misfit(self, workload: Workload) -> str | None:
        if self.shard_axis in (AUTO, *workload.axes):
            return None
        offered = ", ".join(dict.fromkeys((AUTO, *workload.axes, *workload.coordinates)))
        return f"there is no axis {self.shard_axis!r} to shard; shard-axis may be {offered}"

    def why_not(self, workload: Workload, ranks: int) -> str | None:
        axes = list(workload.axes) if self.shard_axis == AUTO else [self.shard_axis]
        reasons = {axis: self.why_not_along(axis, workload, ranks) for axis in axes}
        # The reason of the longest axis: it is the one that comes nearest.
        longest = max(axes, key=workload.axes.__getitem__)
        return None if None in reasons.values() else reasons[longest]

    def why_not_along(self, axis: str, workload: Workload, ranks: int) -> str | None:
        """Why ``axis`` cannot be the sharded one."""
        length = workload.axes[axis]
        if length >= ranks:
            return None
        limit = f"use 1 to {length} ranks"
        return f"{length} positions of {axis} cannot be split over {ranks} ranks; {limit}"

    @property
    def with_any_axis(self) -> Self:
        """It with its axis left open, for a workload with other axes."""
        return replace(self, shard_axis=AUTO)

    @final
    def axes(self, workload: Workload, ranks: int) -> list[str]:
        """Those that it might shard."""
        if self.shard_axis != AUTO:
            return [self.shard_axis]
        return [a for a in workload.axes if self.why_not_along(a, workload, ranks) is None]

    def along(self, axis: str, workload: Workload, ranks: int) -> FixedPlan:
        """Its plan with ``axis`` sharded; no other option is left open."""
        layout = (axis,) * len(workload.stack)
        return self.plan(strategy=self, workload=workload, ranks=ranks, layout=layout)

    def on_each_axis(self, workload: Workload, ranks: int) -> Sequence[FixedPlan]:
        """The plans among which only the axis is to be chosen."""
        return [self.along(axis, workload, ranks) for axis in self.axes(workload, ranks)]

    @final
    def on_cheapest_axis(self, workload: Workload, ranks: int) -> FixedPlan:
        """The one that is preferred of ``on_each_axis``."""
        plans = self.on_each_axis(workload, ranks)
        if len(plans) == 1:  # its bytes decide nothing, and take long on thousands of ranks
            return plans[0]
        return min(plans, key=lambda plan: plan.preference)

    def alternatives(self, workload: Workload, ranks: int) -> Sequence[FixedPlan]:
        return self.on_each_axis(workload, ranks)

    def on(self, workload: Workload, ranks: int) -> FixedPlan:
        return self.on_cheapest_axis(workload, ranks)


TOKENS, WORK = "tokens", "work"
"""What shards are even by."""


@dataclass(frozen=True, kw_only=True)
class BalancedAxis(FixedAxis, ABC):
    """A strategy whose ranks attend with their own queries: ``balance`` says whether they hold as
    many tokens, or have as much work, with fewer tokens where these see more keys."""

    balance: str = TOKENS

    def misfit(self, workload: Workload) -> str | None:
        if self.balance not in (TOKENS, WORK):
            return f"balance={self.balance} is not known; it may be {TOKENS} or {WORK}"
        return super().misfit(workload)


@dataclass(frozen=True, kw_only=True, eq=False)
class BalancedPlan(FixedPlan, ABC):
    """Shards as even as the option says: zigzag where later positions see more keys."""

    strategy: BalancedAxis
    zigzag: ClassVar[bool] = True
    of_all: Workload | None = None
    """The workload with the heads of all ranks, if this one has but some: all are cut alike."""

    def shard(self, axis: str) -> Shard:
        by_tokens = super().shard(axis)
        if self.strategy.balance == TOKENS:
            return by_tokens
        return by_work(self.of_all or self.workload, axis, by_tokens)

    def with_heads_of(self, part: Workload) -> FixedPlan:
        return replace(self, workload=part, of_all=self.of_all or self.workload)

    @property
    def notes(self) -> str:
        work = PositionWork(self.workload, self.axis)
        if self.ranks == 1 or not work.uneven:
            return ""
        shard = self.shard(self.axis)
        all_works, attention = work.imbalance(shard), work.imbalance_of_attention(shard)
        if self.strategy.balance == TOKENS and attention <= NEARLY_EVEN:
            return shard.in_words(self.axis) if self.workload.grows_along(self.axis) else ""
        held = f"each rank holds {shard.runs_in_words(self.axis)}"
        busiest = f"the busiest has {attention:.2f} times the mean of operations of attention"
        tokens = f", {shard.imbalance:.2f} of tokens" if self.strategy.balance == WORK else ""
        return f"{held}; {busiest}, {all_works:.2f} of all{tokens}"


def padding_in_words(workload: Workload, ranks: int, pads: bool) -> str:
    """What padding costs; blank where heads divide."""
    had, heads = workload.heads, all_heads(workload, ranks, pads).heads
    if had == heads:
        return ""
    return f"{had} heads are padded to {heads}, {heads / had:.2f} times the work of attention"
