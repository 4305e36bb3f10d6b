"""A plan as plain data that needs no torch: the axis sharded at each sublayer, the bytes, periods.

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

from spbench.strategies.registry import UnknownStrategyError, in_mesh
from spbench.strategies.who_holds import who_holds
from spbench.workload.block import Attention, Stack, Sublayer
from spbench.workload.case import Case, Cell
from spbench.workload.mesh import NO_MESH, CaseMesh
from spbench.workload.predicted import Lane, Leg, Prediction, Sent
from spbench.workload.traffic import Transfer, busiest_rank, by_busiest
from spbench.workload.workload import Workload

if TYPE_CHECKING:
    from spbench.strategies.base import Layout, Plan, Strategy


@final
@dataclass(frozen=True, kw_only=True)
class Course:
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
        # Counted from the end: of attention, mlp the attention is 1 from the end, so that 1 lies
        # behind it.
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
        # The first period repeated to the end, and one sublayer more: the switch that another block
        # would need.
        again = [self.layout[i % self.sublayers] for i in range(len(self.layout) + 1)]
        return _switches(again) > _switches(self.layout)


def courses(layout: Layout, workload: Workload) -> list[Course]:
    ends = [*accumulate((len(x.block) * x.depth for x in workload.parts), initial=0)]
    return [
        Course(part=part, start=start, layout=layout[start:end])
        for part, (start, end) in zip(workload.parts, pairwise(ends), strict=True)
    ]


def mean_bytes(course: Course, legs: Sequence[Leg]) -> Fraction:
    """Bytes sent in forward by a block of the stack, the mean of a period."""
    period = legs[course.start : course.start + course.sublayers]
    return sum((leg.total_bytes for leg in period), Fraction(0)) / course.period


def _switches(layout: Sequence[str]) -> int:
    return sum(before != after for before, after in pairwise(layout))


def predictions(cells: Sequence[Cell]) -> dict[str, Prediction]:
    """Predictions of the cells that can run, by the keys of their cases. Imports torch."""
    cases = {cell.case.key: cell.case for cell in cells if cell.why_not is None}
    return {key: _prediction(case) for key, case in cases.items()}


def _prediction(case: Case) -> Prediction:
    strategy = in_mesh(case.strategy, case.mesh)
    plan = strategy.on(strategy.flattened(case.workload), case.ranks)
    layout = _sharded(plan)
    axes = layout[: len(plan.workload.parts[0].block)]
    return Prediction(
        sharded=_in_order(axes) if len({*layout}) > 1 else axes[0] or "none",
        sent_bytes=by_busiest(plan.traffic),
        note=_notes(plan),
    )


def _in_order(axes: Layout) -> str:
    """The axes of a block's sublayers; with commas where one has words in its name, as those that
    are several as one: 'time, height x width'."""
    return (", " if any(" " in axis for axis in axes) else " ").join(axes)


def _sharded(plan: Plan) -> Layout:
    """The sharded axis of each sublayer; '' where ranks hold the activation whole."""
    return ("",) * len(plan.layout) if plan.group.holds_whole else plan.layout


def _notes(plan: Plan) -> str:
    mesh = str(plan.mesh)
    meshed = f"groups of ranks are {mesh}" if mesh else ""
    return "; ".join(filter(None, (meshed, plan.notes)))


def lanes(
    workload: Workload, strategies: Sequence[str], ranks: int, mesh: CaseMesh = NO_MESH
) -> list[Lane]:
    """A lane for each strategy, in this mesh. Imports torch.

    Parameters
    ----------
    workload
        The workload, with the axes of its file.
    strategies
        Names with options.
    ranks
        Their number, for all of the strategies.
    mesh
        Groups of ranks around the strategy, as for branches of guidance.

    Returns
    -------
    list of Lane
        One for each strategy, in order; one that cannot run says why.

    Raises
    ------
    UnknownStrategyError
        For an unknown option, and for one that names an unknown axis.
    """
    loaded = {mesh.beside(name): in_mesh(name, mesh) for name in strategies}
    for name, strategy in loaded.items():
        wrong = strategy.misfit(strategy.flattened(workload))
        if wrong is not None:
            raise UnknownStrategyError(f"{name}: {wrong}")
    return [
        _lane(name, strategy, strategy.flattened(workload), ranks)
        for name, strategy in loaded.items()
    ]


def _lane(name: str, strategy: Strategy, workload: Workload, ranks: int) -> Lane:
    why_not = strategy.unfit(workload, ranks)
    if why_not is not None:
        return Lane(strategy=name, why_not=why_not)
    plan = strategy.on(workload, ranks)
    busiest = busiest_rank(sent for sent in plan.traffic if sent.phase == "forward")
    # Groups of guidance do the same: rank 5 of two groups of 4 is rank 1 of its group.
    times = 1 if plan.stages is None else plan.stages.microbatches
    legs = _legs(plan.group, busiest % plan.group.ranks, times)
    stacks = courses(plan.layout, workload)
    means = [mean_bytes(course, legs) * course.part.depth for course in stacks]
    return Lane(
        strategy=name,
        note=plan.notes if (holds := who_holds(plan)) else _notes(plan),
        holds=holds,
        legs=legs,
        axes={axis: tuple(workload.grid(axis)) for axis in workload.axes},
        periods=tuple(course.period for course in stacks),
        saves_last_switch=stacks[-1].saves_last_switch,
        block_bytes=sum(means, Fraction(0)) / workload.blocks,
        step_bytes=by_busiest(plan.traffic),
    )


def _legs(plan: Plan, rank: int, times: int) -> tuple[Leg, ...]:
    """``times``: microbatches in a step, each of which sends what the plan says."""

    def sent(transfer: Transfer) -> Sent:
        return Sent(
            op=transfer.op, sent_bytes=times * transfer.sent[rank], of_edges=transfer.of_edges
        )

    made: dict[tuple[Sublayer, str, str], Leg] = {}  # a stack repeats a few legs
    legs = []
    shown, layout = _sharded(plan), plan.layout
    for sublayer, axis, after, name in zip(
        plan.workload.stack, layout, (*layout[1:], layout[-1]), shown, strict=True
    ):
        key = sublayer, axis, after
        if key not in made:
            forward, _ = plan.traffic_of(sublayer, axis)
            hops, _ = plan.switch_traffic(axis, after)
            sent_bytes = times * sum((hop.sent[rank] for hop in hops), Fraction(0))
            switch = Sent(op=hops[0].op, sent_bytes=sent_bytes) if hops else None
            moved = tuple(x for x in map(sent, forward) if x.sent_bytes)  # no ring of one rank
            made[key] = Leg(axis=name, transfers=moved, switch=switch)
        legs.append(made[key])
    return tuple(legs)
