"""Whether a layout sends as few bytes as any that its strategy might have chosen.

A planner's mistake leaves every number right, and bytes as predicted, since they are predicted from
the layout that it chose. So the least is found in another way than a planner's: forward through the
stack, from the transfers themselves.
"""

from functools import cache
from math import inf

from spbench.strategies.base import Strategy
from spbench.strategies.switches import transfers_of
from spbench.workload.step_traffic import Move
from spbench.workload.traffic import waited_bytes
from spbench.workload.workload import Workload

ROUNDING = 1e-9
"""Relative difference of two sums of the same bytes in another order."""


def why_not_cheapest(strategy: Strategy, workload: Workload, ranks: int) -> str | None:
    """A sentence with both numbers of bytes where a cheaper layout exists, or None."""
    strategy, workload, ranks = strategy.in_a_group(workload, ranks)
    sent = waited_bytes(strategy.traffic(workload, ranks))
    least = _least_bytes(strategy, workload, ranks)
    if least is None or sent <= least * (1 + ROUNDING):
        return None
    return (
        f"the layout that ran sends {sent / least if least else inf:.2f} times the bytes of the "
        f"cheapest: {sent:,.0f} in a step, where {least:,.0f} are enough"
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
