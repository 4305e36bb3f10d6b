"""Whether a plan sends as few bytes as any that its strategy might have chosen.

A planner's mistake leaves every number right, and bytes as predicted, since they are predicted from
the layout that it chose. So the least is found in another way than a planner's: forward through the
stack, from the transfers themselves. Options that a strategy chooses, as the size of its groups,
are held against all other values, by the bytes of whole steps.
"""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from math import inf

from spbench.strategies.base import Plan, Strategy
from spbench.workload.traffic import Move, waited_bytes
from spbench.workload.workload import Workload

ROUNDING = 1e-9
"""Relative difference of two sums of the same bytes in another order."""


def why_not_cheapest(strategy: Strategy, workload: Workload, ranks: int) -> str | None:
    """A sentence with both numbers of bytes where a cheaper layout exists, or cheaper values of
    options that ``strategy``, as it was asked for, chose itself; or None."""
    plan = strategy.on(workload, ranks)
    costly = _why_not_cheapest_layout(plan)
    for other in () if costly else strategy.alternatives(workload, ranks):
        costly = costly or _why_dearer(plan, other)
    return costly or _why_not_cheapest_inside(plan)


def _why_not_cheapest_inside(plan: Plan) -> str | None:
    """The same of a strategy that exchanges in the plan's place."""
    across = getattr(plan, "across", None) or getattr(plan, "joint", None)
    if across is None:
        return None
    asked_for = getattr(plan.strategy, "other", across.strategy)
    return why_not_cheapest(asked_for, across.workload, across.ranks)


def _why_not_cheapest_layout(plan: Plan) -> str | None:
    sent, least = waited_bytes(plan.traffic), _least_bytes(plan)
    if least is None or sent <= least * (1 + ROUNDING):
        return None
    return (
        f"the layout that ran sends {sent / least if least else inf:.2f} times the bytes of the "
        f"cheapest: {sent:,.0f} in a step, where {least:,.0f} are enough"
    )


def _why_dearer(chosen: Plan, other: Plan) -> str | None:
    """Whether another way to write out what was left open costs less."""
    if chosen.cost <= other.cost * (1 + ROUNDING):
        return None
    times = chosen.cost / other.cost if other.cost else inf
    return (
        f"{_apart(chosen, other)} was chosen, which costs {times:.2f} times as much as "
        f"{_apart(other, chosen)}: {chosen.cost:,.0f} bytes in a step, where {other.cost:,.0f} are "
        "enough, weighed by how unevenly ranks attend"
    )


def _apart(plan: Plan, other: Plan) -> str:
    """The options in which a plan differs from another of its kind: ``ulysses=2``; or its axis."""
    return (
        " ".join(
            f"{field.name.replace('_', '-')}={getattr(plan.strategy, field.name)}"
            for field in fields(plan.strategy)
            if getattr(plan.strategy, field.name) != getattr(other.strategy, field.name)
        )
        or f"the axis {plan.layout[0]}"
    )


def _least_bytes(plan: Plan) -> float | None:
    """The fewest bytes over all layouts of the plan's choices; None where it names none."""
    choices = {each: plan.choices(each) for each in plan.workload.kinds}
    if not all(choices.values()):
        return None

    @cache
    def cost(move: Move) -> float:
        return waited_bytes(plan.transfers_of(move))

    @cache
    def can_switch(before: str, after: str) -> bool:
        return plan.hops(before, after) is not None

    first, *others = plan.workload.places
    best = {axis: cost(Move(first, axis, axis)) for axis in choices[first.sublayer]}
    for place in others:
        best = {
            axis: min(
                (
                    so_far + cost(Move(place, before, axis))
                    for before, so_far in best.items()
                    if before == axis or can_switch(before, axis)
                ),
                default=inf,
            )
            for axis in choices[place.sublayer]
        }
    return min(best.values())
