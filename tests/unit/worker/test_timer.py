"""The stopwatch, with a clock and a group of our own."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Sequence

import pytest
import torch

from spbench.comm.group import ShareOfGroup
from spbench.worker.timer import PRODUCTS, ProcessorSpeed, Stopwatch, is_steady
from spbench.workload.case import QUICK, MeasurementBudget


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
    """Slow first steps are warm-up; it ends once two seconds that share no step are alike."""
    time = FakeTime([*[400] * 5, *[250] * 50])
    assert len(watch(time).warm_up(time.step, MeasurementBudget())) == 5 + 2 * 4


def test_warm_up_is_capped() -> None:
    """A machine that never settles costs ``max_warmup`` steps, and so does a quick launch."""
    time = FakeTime([10 * 1.5**i for i in range(30)])
    budget = MeasurementBudget(seconds=100.0, max_warmup=12)
    assert len(watch(time).warm_up(time.step, budget)) == 12
    steady = FakeTime([10.0])
    assert len(watch(steady).warm_up(steady.step, QUICK)) == 5


def first_steady_s(step_ms: Callable[[float], float]) -> float:
    """Seconds of steps, each as long as ``step_ms`` of the time it begins at, until steady."""
    times: list[float] = []
    spent_s = 0.0
    while spent_s < 6.0:
        times.append(step_ms(spent_s))
        spent_s += times[-1] / 1e3
        if is_steady(times):
            break
    return spent_s


@pytest.mark.parametrize("way", [-1, 1])
def test_what_drifts_is_not_called_steady(way: int) -> None:
    """Of 1,000 series of steps of 50 ms that scatter by 1 % and drift by 20 % over 3 s, at most
    1 % are called steady before the drift has ended."""
    chance = random.Random(way)

    def drifting(now_s: float) -> float:
        return 50.0 * (1 + way * 0.2 * min(now_s, 3.0) / 3) * chance.gauss(1, 0.01)

    early = sum(first_steady_s(drifting) < 3.0 for _ in range(1000))
    assert early <= 10


def test_what_is_steady_is_called_so_soon() -> None:
    """Of 1,000 series of steps of 50 ms that scatter by 3 %, at least 95 % are steady as soon as
    two windows of a second are full: the step that fills the second may end behind 2 s."""
    chance = random.Random(0)
    soon = sum(first_steady_s(lambda _: 50.0 * chance.gauss(1, 0.03)) < 2.1 for _ in range(1000))
    assert soon >= 950


def test_a_gpu_warms_up_for_seconds() -> None:
    """However steady its steps are: its clock is not yet."""
    time = FakeTime([50.0])
    stopwatch = watch(time)
    stopwatch.group.device = torch.device("cuda", 0)
    stopwatch.group.synchronise = lambda: None  # type: ignore[method-assign]
    assert len(stopwatch.warm_up(time.step, MeasurementBudget())) == 61


def test_no_garbage_is_collected_in_timed_steps() -> None:
    """Each step leaves cycles of Python objects; a collection would take 100 ms, and came once in
    8 steps. With the same steps and none to collect the times are equal, within 1 %."""
    time = FakeTime([50.0])

    def collected(phase: str, _: object) -> None:
        time.now_s += 0.05 * (phase == "stop")

    def step() -> None:
        for _ in range(200):
            cycle: list[object] = []
            cycle.append(cycle)
        time.step()

    thresholds = gc.get_threshold()
    gc.callbacks.append(collected)
    gc.set_threshold(1600)
    try:
        took, issued = watch(time).time(step, 40)
    finally:
        gc.callbacks.remove(collected)
        gc.set_threshold(*thresholds)
    assert gc.isenabled()
    assert took == issued == pytest.approx([50.0] * 40, rel=0.01)


def test_long_steps_do_not_warm_up_for_ever() -> None:
    """Past the least number of steps, twice the wanted seconds are enough."""
    time = FakeTime([9000.0, 8000.0, 7000.0, 6000.0])
    assert len(watch(time).warm_up(time.step, MeasurementBudget(seconds=1.0))) == 3


def test_steps_of_more_than_a_second_fill_both_windows() -> None:
    """Beyond twice the wanted seconds, if they need it; whether they were steady is known."""
    alike, sinking = FakeTime([1500.0]), FakeTime([1500.0 + 400 * i for i in range(30)][::-1])
    for time, is_warm in ((alike, True), (sinking, False)):
        stopwatch = watch(time)
        slowest = stopwatch.warm_up(time.step, MeasurementBudget(seconds=3.0))
        assert (len(slowest) >= 6, stopwatch.is_warm(slowest)) == (is_warm, is_warm)


def test_times_are_the_steps_alone() -> None:
    """The time of a step does not include its barrier."""
    time = FakeTime([7.0, 9.0, 8.0])

    class Slow(ShareOfGroup):  # type: ignore[misc]
        def barrier(self) -> None:
            time.now_s += 1.0
            time.order.append("barrier")

    stopwatch = Stopwatch(group=Slow(torch.device("cpu"), 1), now_s=lambda: time.now_s)
    took, _ = stopwatch.time(time.step, 3)
    assert took == pytest.approx([7.0, 9.0, 8.0])
    assert time.order == ["barrier", "step"] * 3
    assert stopwatch.spent_s == pytest.approx(0.024)


def test_the_speed_of_a_processor_is_that_of_its_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of 2 x 256^3 operations that take a millisecond, but for those while threads wake
    up, and two that were disturbed."""
    cold = [5e-3] * PRODUCTS
    disturbed = [1e-3] * (PRODUCTS - 3) + [9e-3, 9e-3, 1e-3]
    taken_s = iter([1e-3] * 2 * PRODUCTS + cold + disturbed + [0.0] * 2 * PRODUCTS)
    now_s = iter(time for took in taken_s for time in (0.0, took))
    monkeypatch.setattr("time.thread_time", lambda: next(now_s))
    speed = ProcessorSpeed(ShareOfGroup(torch.device("cpu"), 2))
    assert speed.look() == pytest.approx(2 * 256**3 / 1e6)
    assert speed.look() == 0.0, "the clock is too coarse to tell"
