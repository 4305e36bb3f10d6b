"""A strategy's course through a stack as plain data: the axis sharded at each sublayer, the bytes.

It is worked out before any rank is started, so that drawing and printing need no torch. All
bytes of a lane are those of the rank that is busiest in forward, so that they add up; the other
ranks send as much, or less where shards are uneven.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING

from spbench.strategies.registry import UnknownStrategyError, load
from spbench.workload.block import Attention, Sublayer
from spbench.workload.case import Case, Cell
from spbench.workload.predicted import Lane, Leg, Prediction, Sent
from spbench.workload.sent_counts import busiest_rank, by_busiest
from spbench.workload.traffic import Transfer, switch
from spbench.workload.workload import Workload

if TYPE_CHECKING:
    from spbench.strategies.base import Layout, Strategy


def predictions(cells: Sequence[Cell]) -> dict[str, Prediction]:
    """Predictions of the cells that can run, by the keys of their cases. Imports torch."""
    cases = {cell.case.key: cell.case for cell in cells if cell.why_not is None}
    return {key: _prediction(case) for key, case in cases.items()}


def _prediction(case: Case) -> Prediction:
    strategy = load(case.strategy)
    layout = strategy.layout(case.workload, case.ranks)
    axes = layout[: len(case.workload.block)]
    return Prediction(
        sharded=axes[0] if len(set(layout)) == 1 else " ".join(axes),
        sent_bytes=by_busiest(strategy.traffic(case.workload, case.ranks)),
        note=strategy.notes(case.workload, case.ranks),
    )


def lanes(workload: Workload, strategies: Sequence[str], ranks: int) -> list[Lane]:
    """A lane for each strategy. Imports torch.

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
    busiest = busiest_rank(transfer for transfer in traffic if transfer.phase == "forward")
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
        step_bytes=by_busiest(traffic),
    )


def _legs(
    strategy: Strategy, layout: Layout, workload: Workload, ranks: int, rank: int
) -> tuple[Leg, ...]:
    def sent(transfer: Transfer) -> Sent:
        return Sent(op=transfer.op, sent_bytes=transfer.sent[rank])

    block = workload.block
    made: dict[tuple[Sublayer, str, str], Leg] = {}  # a stack repeats a few legs
    legs = []
    for i, (axis, after) in enumerate(zip(layout, (*layout[1:], layout[-1]), strict=True)):
        key = (block[i % len(block)], axis, after)
        if key not in made:
            forward, _ = strategy.sublayer_traffic(block[i % len(block)], workload, axis, ranks)
            hop = sent(switch(workload, axis, after, ranks)) if after != axis else None
            made[key] = Leg(axis=axis, transfers=tuple(map(sent, forward)), switch=hop)
        legs.append(made[key])
    return tuple(legs)


def _period(layout: Sequence[str], workload: Workload) -> int:
    """Blocks after which the layout repeats, up to the last attention of the stack.

    What follows that attention may stay on the axis at hand.
    """
    length = len(workload.block)
    attends = [isinstance(sublayer, Attention) for sublayer in reversed(workload.block)]
    behind = attends.index(True) if any(attends) else length
    for period in range(1, workload.depth):
        apart = period * length
        if all(layout[i] == layout[i - apart] for i in range(apart, len(layout) - behind)):
            return period
    return workload.depth


def _switches(layout: Layout) -> int:
    return sum(before != after for before, after in pairwise(layout))
