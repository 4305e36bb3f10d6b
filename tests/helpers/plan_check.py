"""Whether a layout sends as few bytes as any that its strategy might have chosen.

A planner's mistake leaves every number right, and bytes as predicted, since they are predicted from
the layout that it chose. So the least is found in another way than a planner's: forward through the
stack, from the transfers themselves. Options that a strategy chooses, as the size of its groups,
are held against all other values, by the bytes of whole steps.
"""

from dataclasses import fields
from functools import cache
from math import inf

from spbench.strategies.base import Strategy, transfers_of
from spbench.workload.traffic import Move, waited_bytes
from spbench.workload.workload import Workload

ROUNDING = 1e-9
"""Relative difference of two sums of the same bytes in another order."""


def why_not_cheapest(strategy: Strategy, workload: Workload, ranks: int) -> str | None:
    """A sentence with both numbers of bytes where a cheaper layout exists, or cheaper values of
    options that ``strategy``, as it was asked for, chose itself; or None."""
    strategy, workload, ranks = strategy.in_a_group(workload, ranks)
    chosen = strategy.settled(workload, ranks)
    costly = _why_not_cheapest_layout(chosen, workload, ranks)
    costly = costly or _why_not_cheapest_options(chosen, strategy, workload, ranks)
    inside = (why_not_cheapest(*other) for other in strategy.others(workload, ranks))
    return costly or next(filter(None, inside), None)


def _why_not_cheapest_layout(strategy: Strategy, workload: Workload, ranks: int) -> str | None:
    sent = waited_bytes(strategy.traffic(workload, ranks))
    least = _least_bytes(strategy, workload, ranks)
    if least is None or sent <= least * (1 + ROUNDING):
        return None
    return (
        f"the layout that ran sends {sent / least if least else inf:.2f} times the bytes of the "
        f"cheapest: {sent:,.0f} in a step, where {least:,.0f} are enough"
    )


def _why_not_cheapest_options(
    chosen: Strategy, asked_for: Strategy, workload: Workload, ranks: int
) -> str | None:
    """Whether another way to write out what ``asked_for`` leaves open costs less."""
    cost = _cost(chosen, workload, ranks)
    for other in asked_for.alternatives(workload, ranks):
        less = _cost(other, workload, ranks)
        if cost > less * (1 + ROUNDING):
            times = cost / less if less else inf
            return (
                f"{_apart(chosen, other)} was chosen, which costs {times:.2f} times as much as "
                f"{_apart(other, chosen)}: {cost:,.0f} bytes in a step, where {less:,.0f} are "
                "enough, weighed by how unevenly ranks attend"
            )
    return None


def _cost(strategy: Strategy, workload: Workload, ranks: int) -> float:
    sent = waited_bytes(strategy.traffic(workload, ranks))
    return sent * strategy.unevenness(workload, ranks)


def _apart(strategy: Strategy, other: Strategy) -> str:
    """The options in which a strategy differs from another of its kind: ``ulysses=2``."""
    return " ".join(
        f"{field.name.replace('_', '-')}={getattr(strategy, field.name)}"
        for field in fields(strategy)
        if getattr(strategy, field.name) != getattr(other, field.name)
    )


def _least_bytes(strategy: Strategy, workload: Workload, ranks: int) -> float | None:
    """The fewest bytes over all layouts of the strategy's choices; None where it names none."""
    choices = {each: strategy.choices(each, workload, ranks) for each in workload.kinds}
    if not all(choices.values()):
        return None

    @cache
    def cost(move: Move) -> float:
        return waited_bytes(transfers_of(strategy, workload, ranks, move))

    @cache
    def can_switch(before: str, after: str) -> bool:
        return strategy.hops(workload, before, after, ranks) is not None

    first, *others = workload.places
    best = {axis: cost(Move(first, axis, axis)) for axis in choices[first.sublayer]}
    for place in others:
        best = {
            axis: min(
                (
                    so_far + cost(Move(place, before, axis))
                    for before, so_far in best.items()
                    if before == axis or (strategy.switches and can_switch(before, axis))
                ),
                default=inf,
            )
            for axis in choices[place.sublayer]
        }
    return min(best.values())
