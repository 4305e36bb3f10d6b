"""The stopwatch, with a clock and a group of our own."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from spbench.comm.group import ShareOfGroup
from spbench.worker.timer import Stopwatch
from spbench.workload.case import MeasurementBudget


class FakeTime:
    """Seconds that pass only when a step says so."""

    def __init__(self, steps_ms: Sequence[float]) -> None:
        self.now_s, self.left = 0.0, list(steps_ms)
        self.order: list[str] = []

    def step(self) -> None:
        self.order.append("step")
        self.now_s += (self.left.pop(0) if len(self.left) > 1 else self.left[0]) / 1e3


def watch(time: FakeTime) -> Stopwatch:
    group = ShareOfGroup(torch.device("cpu"), 1)
    return Stopwatch(group=group, now_s=lambda: time.now_s)


def test_warm_up_ends_when_steady() -> None:
    """Slow first steps are warm-up; it ends once two medians of three agree within 2 %."""
    time = FakeTime([500, 90, 60, 50, 50, 50, 50])
    assert len(watch(time).warm_up(time.step, MeasurementBudget())) == 6


def test_warm_up_is_at_least_three_and_capped() -> None:
    """A machine that never settles costs max_warmup steps; a steady one at least four."""
    time = FakeTime([10 * 1.5**i for i in range(30)])
    assert len(watch(time).warm_up(time.step, MeasurementBudget(seconds=100.0))) == 12
    steady = FakeTime([10.0])
    assert len(watch(steady).warm_up(steady.step, MeasurementBudget())) == 4


def test_long_steps_do_not_warm_up_for_ever() -> None:
    """Past the least number of steps, twice the wanted seconds are enough."""
    time = FakeTime([9000.0, 8000.0, 7000.0, 6000.0])
    assert len(watch(time).warm_up(time.step, MeasurementBudget(seconds=1.0))) == 3


def test_times_are_the_steps_alone() -> None:
    """The time of a step does not include its barrier."""
    time = FakeTime([7.0, 9.0, 8.0])

    class Slow(ShareOfGroup):  # type: ignore[misc]
        def barrier(self) -> None:
            time.now_s += 1.0
            time.order.append("barrier")

    stopwatch = Stopwatch(group=Slow(torch.device("cpu"), 1), now_s=lambda: time.now_s)
    assert stopwatch.time(time.step, 3) == pytest.approx([7.0, 9.0, 8.0])
    assert time.order == ["barrier", "step"] * 3
    assert stopwatch.spent_s == pytest.approx(0.024)
