"""The layout of fewest bytes through a whole stack, from what sublayers and switches cost."""

from collections.abc import Mapping
from itertools import product
from typing import NamedTuple

from spbench.strategies.base import Strategy
from spbench.strategies.switches import switch_traffic
from spbench.workload.block import Sublayer
from spbench.workload.traffic import bytes_in_a_step
from spbench.workload.workload import Workload

Cost = tuple[float, float]
"""Bytes that ranks wait for (of each transfer's busiest rank), then imbalance of compute."""
Inside = Mapping[Sublayer, Mapping[str, Cost]]
"""Cost of each sublayer without switches, for each axis that may be sharded in it."""
Moves = Mapping[tuple[str, str, bool], float]
"""Bytes of a switch from axis to axis, and whether it starts a block; absent: there is none."""


class Plan(NamedTuple):
    """The axis that is sharded in each sublayer, and what the whole stack costs."""

    layout: tuple[str, ...]
    cost: Cost


def cheapest_plan(strategy: Strategy, workload: Workload, ranks: int) -> Plan | None:
    """The plan of fewest bytes over the axes that are the strategy's choices; None: no switches
    lead through the stack.

    Dynamic programming from the last sublayer back to the first. ``ahead[axis]`` is the least cost
    of all sublayers from one on, if ``axis`` is sharded in that one. With K axes in rotation it
    finds K/(K-1) switches a round, and none after the last attention. On a tie the axis stays, so
    switches come late.
    """
    inside = {each: _inside(each, strategy, workload, ranks) for each in workload.kinds}
    moves = _moves(inside, strategy, workload, ranks)
    ahead: dict[str, Cost] = {after: (0.0, 0.0) for _, after, _ in moves}
    follow: list[dict[str, str]] = []
    for place in reversed(workload.places):
        into = place.is_last  # the switch behind it starts a block
        costs: dict[str, Cost] = {}
        chosen: dict[str, str] = {}
        for axis, (sent, uneven) in inside[place.sublayer].items():
            options = {
                after: (sent + later + moves[axis, after, into], uneven + waited)
                for after, (later, waited) in ahead.items()
                if (axis, after, into) in moves
            }
            if options:
                costs[axis], _, chosen[axis] = min(
                    (cost, after != axis, after) for after, cost in options.items()
                )
        ahead = costs
        follow.append(chosen)
    if not ahead:
        return None
    plan = [min(ahead, key=ahead.__getitem__)]
    least = ahead[plan[0]]
    for chosen in follow[:0:-1]:
        plan.append(chosen[plan[-1]])
    return Plan(tuple(plan), least)


def _inside(
    sublayer: Sublayer, strategy: Strategy, workload: Workload, ranks: int
) -> dict[str, Cost]:
    return {
        axis: (
            bytes_in_a_step(workload, *strategy.sublayer_traffic(sublayer, workload, axis, ranks)),
            strategy.shard(workload, axis, ranks).imbalance - 1,
        )
        for axis in strategy.choices(sublayer, workload, ranks)
    }


def _moves(inside: Inside, strategy: Strategy, workload: Workload, ranks: int) -> Moves:
    """A switch into a block is not recomputed."""
    taken = dict.fromkeys(axis for costs in inside.values() for axis in costs)
    moves: dict[tuple[str, str, bool], float] = {}
    for a, b in product(taken, repeat=2):
        if strategy.hops(workload, a, b, ranks) is not None:
            sent = switch_traffic(strategy, workload, a, b, ranks)
            moves[a, b, True] = bytes_in_a_step(workload, *sent, repeated=False)
            moves[a, b, False] = bytes_in_a_step(workload, *sent)
    return moves
