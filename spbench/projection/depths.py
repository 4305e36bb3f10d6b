"""Which few depths of each stack tell what a step of the whole depth does.

A base, then each stack deeper by a period of its layout, which tells what a period adds, then all
stacks deeper by two: that what a period adds is always the same is checked there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Self, final

from spbench.projection.recorder import Counted
from spbench.strategies.base import Layout
from spbench.strategies.courses import courses
from spbench.workload.workload import Workload

BASE = 1
"""Blocks of a stack at least."""


@final
@dataclass(frozen=True)
class Depths:
    """Few depths of a workload's stacks, one for each stack."""

    whole: Workload
    periods: tuple[int, ...]
    """Blocks after which the layout of each stack repeats."""

    @classmethod
    def of(cls, workload: Workload, layout: Layout) -> Self:
        return cls(workload, tuple(course.period for course in courses(layout, workload)))

    @cached_property
    def base(self) -> tuple[int, ...]:
        """The depth of each stack that runs; its own where three depths would not save any."""
        return tuple(
            part.depth if part.depth <= BASE + 2 * period else _base(part.depth, period)
            for part, period in zip(self.whole.parts, self.periods, strict=True)
        )

    @cached_property
    def _steps(self) -> dict[tuple[int, ...], int]:
        """The deeper depths, and how often what each adds occurs."""
        steps = {}
        for i, (part, period) in enumerate(zip(self.whole.parts, self.periods, strict=True)):
            if part.depth > self.base[i]:
                deeper = (*self.base[:i], self.base[i] + period, *self.base[i + 1 :])
                steps[deeper] = (part.depth - self.base[i]) // period
        return steps

    @property
    def _check(self) -> tuple[int, ...]:
        parts = zip(self.whole.parts, self.base, self.periods, strict=True)
        return tuple(base + 2 * period * (part.depth > base) for part, base, period in parts)

    @property
    def runs(self) -> list[tuple[int, ...]]:
        """All depths that are to run."""
        return list(dict.fromkeys([self.base, *self._steps, self._check]))

    def workload(self, depths: tuple[int, ...]) -> Workload:
        """The workload at these depths."""
        parts = zip(self.whole.parts, depths, strict=True)
        return self.whole.with_parts(
            [part.model_copy(update={"depth": depth}) for part, depth in parts]
        )

    def extrapolated(self, counted: Mapping[tuple[int, ...], Counted]) -> Counted | None:
        """What the whole depth counts, from each of ``runs``; None: it is not affine."""
        base = total = checked = counted[self.base]
        for depths, times in self._steps.items():
            added = counted[depths].plus(base, -1)
            total, checked = total.plus(added, times), checked.plus(added, 2)
        return total if checked == counted[self._check] else None


def _base(depth: int, period: int) -> int:
    return BASE + (depth - BASE) % period
