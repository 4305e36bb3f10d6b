"""A strategy's course through a stack as plain data: the axis sharded at each sublayer, the bytes.

It is worked out before any rank is started, so that drawing and printing need no torch. All
bytes of a lane are those of the rank that is busiest in forward, so that they add up; the other
ranks send as much, or less where shards are uneven.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, final

from spbench.strategies.registry import UnknownStrategyError, load
from spbench.workload.block import Attention, Stack, Sublayer
from spbench.workload.case import Case, Cell
from spbench.workload.mesh import Mesh
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
    axes = layout[: len(case.workload.parts[0].block)]
    return Prediction(
        sharded=axes[0] if len(set(layout)) == 1 else " ".join(axes),
        sent_bytes=by_busiest(strategy.traffic(case.workload, case.ranks)),
        note=_notes(strategy, case.workload, case.ranks),
    )


def _notes(strategy: Strategy, workload: Workload, ranks: int) -> str:
    mesh = str(Mesh.of(strategy.mesh(workload, ranks)))
    meshed = f"groups of ranks are {mesh}" if mesh else ""
    return "; ".join(filter(None, (meshed, strategy.notes(workload, ranks))))


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
    legs = _legs(strategy, layout, workload, ranks, busiest)
    courses = _courses(layout, workload)
    means = [_mean_bytes(course, legs) * course.part.depth for course in courses]
    return Lane(
        strategy=name,
        note=_notes(strategy, workload, ranks),
        legs=legs,
        periods=tuple(course.period for course in courses),
        saves_last_switch=courses[-1].saves_last_switch,
        block_bytes=sum(means, Fraction(0)) / workload.blocks,
        step_bytes=by_busiest(traffic),
    )


def _legs(
    strategy: Strategy, layout: Layout, workload: Workload, ranks: int, rank: int
) -> tuple[Leg, ...]:
    def sent(transfer: Transfer) -> Sent:
        return Sent(op=transfer.op, sent_bytes=transfer.sent[rank])

    made: dict[tuple[Sublayer, str, str], Leg] = {}  # a stack repeats a few legs
    legs = []
    for key in zip(workload.stack, layout, (*layout[1:], layout[-1]), strict=True):
        sublayer, axis, after = key
        if key not in made:
            forward, _ = strategy.sublayer_traffic(sublayer, workload, axis, ranks)
            hop = sent(switch(workload, axis, after, ranks)) if after != axis else None
            made[key] = Leg(axis=axis, transfers=tuple(map(sent, forward)), switch=hop)
        legs.append(made[key])
    return tuple(legs)


@final
@dataclass(frozen=True, kw_only=True)
class _Course:
    """The layout of one stack of blocks."""

    part: Stack
    start: int
    """Place of its first sublayer among all."""
    layout: Layout

    @cached_property
    def period(self) -> int:
        """Blocks after which the layout repeats, up to the last attention of the stack.

        What follows that attention may stay on the axis at hand.
        """
        layout, length = self.layout, len(self.part.block)
        attends = [isinstance(sublayer, Attention) for sublayer in reversed(self.part.block)]
        behind = attends.index(True) if any(attends) else length
        for period in range(1, self.part.depth):
            apart = period * length
            if all(layout[i] == layout[i - apart] for i in range(apart, len(layout) - behind)):
                return period
        return self.part.depth

    @property
    def sublayers(self) -> int:
        """Sublayers of a period."""
        return self.period * len(self.part.block)

    @property
    def saves_last_switch(self) -> bool:
        """Whether the end does without a switch that every other period has."""
        again = [self.layout[i % self.sublayers] for i in range(len(self.layout) + 1)]
        return _switches(again) > _switches(self.layout)


def _courses(layout: Layout, workload: Workload) -> list[_Course]:
    ends = [*accumulate((len(x.block) * x.depth for x in workload.parts), initial=0)]
    return [
        _Course(part=part, start=start, layout=layout[start:end])
        for part, (start, end) in zip(workload.parts, pairwise(ends), strict=True)
    ]


def _mean_bytes(course: _Course, legs: Sequence[Leg]) -> Fraction:
    """Bytes sent in forward by a block of the stack, the mean of a period."""
    period = legs[course.start : course.start + course.sublayers]
    return sum((leg.total_bytes for leg in period), Fraction(0)) / course.period


def _switches(layout: Sequence[str]) -> int:
    return sum(before != after for before, after in pairwise(layout))
