"""How a layout runs through a workload's stacks of blocks: after how many blocks it repeats."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, final

from spbench.workload.block import Attention, Stack
from spbench.workload.predicted import Leg
from spbench.workload.workload import Workload

if TYPE_CHECKING:
    from spbench.strategies.base import Layout


@final
@dataclass(frozen=True, kw_only=True)
class Course:
    """The layout of one stack of blocks."""

    part: Stack
    start: int
    """Place of its first sublayer among all."""
    layout: "Layout"

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


def courses(layout: "Layout", workload: Workload) -> list[Course]:
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
