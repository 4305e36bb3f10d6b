"""What a strategy does along a stack, as plain data: which axis is sharded where, what is sent.

Strategies are asked here, before any rank is started, so whoever draws or prints the answer
needs no torch. All bytes of a lane are those of one rank, the busiest in forward, so that
they add up; the others send as much, or less where shards are uneven.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING

from spbench.strategies.registry import UnknownStrategyError, load
from spbench.workload.block import Attention
from spbench.workload.traffic import Op, Transfer, by_busiest, switch
from spbench.workload.workload import Workload

if TYPE_CHECKING:
    from spbench.strategies.base import Layout, Strategy


@dataclass(frozen=True, kw_only=True)
class Sent:
    """One collective, and the bytes that the lane's rank sends in it."""

    op: Op
    sent_bytes: Fraction


@dataclass(frozen=True, kw_only=True)
class Leg:
    """One sublayer: the axis that is sharded while it runs, and what its forward sends."""

    axis: str
    transfers: tuple[Sent, ...]
    switch: Sent | None
    """To the axis of the next leg; None where it is the same, or there is none."""

    @property
    def sent_bytes(self) -> Fraction:
        """Of the sublayer alone, without the switch behind it."""
        return sum((one.sent_bytes for one in self.transfers), Fraction(0))

    @property
    def total_bytes(self) -> Fraction:
        return self.sent_bytes + (self.switch.sent_bytes if self.switch else 0)


@dataclass(frozen=True, kw_only=True)
class Lane:
    """One strategy on the whole stack. Without legs if it declines, and then it says why."""

    strategy: str
    why_not: str | None = None
    note: str = ""
    legs: tuple[Leg, ...] = ()
    period: int = 1
    """Blocks after which the layout repeats."""
    saves_last_switch: bool = False
    """Whether the end of the stack does without a switch that every other period has."""
    block_bytes: Fraction = Fraction(0)
    """Sent in forward by a block, the mean of a period, the switch behind it included."""
    step_bytes: Mapping[str, int] = field(default_factory=dict)
    """Sent in a step, by phase: as ``run --dry-run`` predicts it."""


def lanes(workload: Workload, strategies: Sequence[str], ranks: int) -> list[Lane]:
    """One for each strategy. Imports torch.

    Raises UnknownStrategyError for an unknown option, and for one that names an unknown axis.
    """
    loaded = {name: load(name) for name in strategies}
    for name, strategy in loaded.items():
        wrong = strategy.misfit(workload)
        if wrong is not None:
            raise UnknownStrategyError(f"{name}: {wrong}")
    return [_lane(name, strategy, workload, ranks) for name, strategy in loaded.items()]


def _lane(name: str, strategy: Strategy, workload: Workload, ranks: int) -> Lane:
    why_not = strategy.why_not(workload, ranks)
    if why_not is not None:
        return Lane(strategy=name, why_not=why_not)
    traffic = strategy.traffic(workload, ranks)
    forward = [one for one in traffic if one.phase == "forward"]
    busiest = max(range(ranks), key=lambda rank: sum(one.sent[rank] for one in forward))
    layout = strategy.layout(workload, ranks)
    length = len(workload.block)
    period = _period(layout, workload)
    legs = _legs(strategy, layout, workload, ranks, busiest)
    again = tuple(layout[i % (period * length)] for i in range(len(layout) + 1))
    return Lane(
        strategy=name,
        note=strategy.notes(workload, ranks),
        legs=legs,
        period=period,
        saves_last_switch=_switches(again) > _switches(layout),
        block_bytes=sum((leg.total_bytes for leg in legs[: period * length]), Fraction(0)) / period,
        step_bytes=by_busiest(traffic, ranks),
    )


def _legs(
    strategy: Strategy, layout: Layout, workload: Workload, ranks: int, rank: int
) -> tuple[Leg, ...]:
    def sent(transfer: Transfer) -> Sent:
        return Sent(op=transfer.op, sent_bytes=transfer.sent[rank])

    block = workload.block
    legs: dict[tuple[int, str, str], Leg] = {}  # a stack repeats a few of them
    found = []
    for i, (axis, after) in enumerate(zip(layout, (*layout[1:], layout[-1]), strict=True)):
        key = (i % len(block), axis, after)
        if key not in legs:
            forward, _ = strategy.sublayer_traffic(block[i % len(block)], workload, axis, ranks)
            hop = sent(switch(workload, axis, after, ranks)) if after != axis else None
            legs[key] = Leg(axis=axis, transfers=tuple(map(sent, forward)), switch=hop)
        found.append(legs[key])
    return tuple(found)


def _period(layout: Sequence[str], workload: Workload) -> int:
    """Compared up to the last attention: what follows it may stay where it is."""
    length = len(workload.block)
    behind = next(
        (i for i, one in enumerate(reversed(workload.block)) if isinstance(one, Attention)), length
    )
    for period in range(1, workload.depth):
        apart = period * length
        if all(layout[i] == layout[i - apart] for i in range(apart, len(layout) - behind)):
            return period
    return workload.depth


def _switches(layout: Layout) -> int:
    return sum(here != after for here, after in pairwise(layout))
