"""Timed kernels: what is called, how often, and the median of blocks."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from spbench.comm.group import ShareOfGroup
from spbench.comm.transport import Transports
from spbench.worker import kernel_times
from spbench.worker.kernel_calls import joint, prepared, span
from spbench.worker.kernel_times import KernelTimer
from spbench.worker.observer import Observer, PhaseTimes
from spbench.worker.timer import Call, even_clock, seconds_of
from spbench.workload.case import GateCheck
from spbench.workload.catalogue import find
from spbench.workload.timed import TimedKernel

CPU = torch.device("cpu")
GEMM = TimedKernel(kind="gemm", shape=[1, 8, 16, 4], dtype="float32")
BATCHED = TimedKernel(kind="gemm", shape=[3, 8, 16, 4], dtype="float32")
ATTENTION = TimedKernel(kind="attention", shape=[2, 4, 2, 5, 7, 8], dtype="float32")
PASS = TimedKernel(kind="elementwise", shape=[100], dtype="float32")


def timer_of_share() -> KernelTimer:
    return KernelTimer(ShareOfGroup(CPU, 2), Observer(), time.perf_counter)


@pytest.mark.parametrize(
    ("kernel", "shape"),
    [(GEMM, (8, 16)), (BATCHED, (3, 8, 16)), (ATTENTION, (2, 4, 5, 8)), (PASS, (100,))],
)
def test_a_call_gives_a_tensor_of_the_shape_that_was_asked_for(
    kernel: TimedKernel, shape: tuple[int, ...]
) -> None:
    result: Any = prepared(kernel, CPU)()
    assert result.shape == shape


def test_backward_of_an_attention_gives_three_gradients() -> None:
    call = prepared(ATTENTION.model_copy(update={"is_backward": True}), CPU)
    for _ in range(2):
        gradients: Any = call()
        assert [tuple(x.shape) for x in gradients] == [(2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 8)]


def test_an_attention_is_called_on_what_lies_in_memory_as_given() -> None:
    """Heads of one projection are parts of one tensor; of another length they have their own. A
    bias, which all of the batch share, has a gradient."""
    rows = {"shape": [4, 2, 6, 8], "stride": [6 * 48, 8, 48, 1], "dtype": "float32"}
    bias = {"shape": [4, 2, 6, 6], "stride": [0, 36, 6, 1], "dtype": "float32"}
    shape = [4, 2, 2, 6, 6, 8]
    given = TimedKernel(
        kind="attention", shape=shape, dtype="float32", given=[rows, rows, rows, bias]
    )
    assert joint(given.given[:3])["shape"] == [4, 6, 6, 8]
    assert span(joint(given.given[:3])) == 4 * 6 * 48
    out: Any = prepared(given, CPU)()
    assert out.shape == (4, 2, 6, 8)
    gradients: Any = prepared(given.model_copy(update={"is_backward": True}), CPU)()
    assert [tuple(x.shape) for x in gradients] == [(4, 2, 6, 8)] * 3 + [(4, 2, 6, 6)]
    assert gradients[0].is_contiguous() or gradients[0].transpose(1, 2).is_contiguous()
    short = {**rows, "shape": [4, 2, 3, 8]}
    assert joint([rows, short, short]) is None
    assert joint([{**rows, "stride": [96, 8, 16, 1]}] * 3) is None, "no room for others' heads"


@pytest.mark.parametrize(("call_s", "calls"), [(0.0004, 10), (0.09, 0), (0.1, -1), (1e-6, 1000)])
def test_a_block_of_calls_fills_four_milliseconds(call_s: float, calls: int) -> None:
    """One call sets up, one is timed for the number of calls, then a block, unless it fills it; a
    tenth of a second is timed by its first call."""
    times_s, made = [0.0], []

    def call() -> None:
        made.append(1)
        times_s[0] += call_s

    found = seconds_of(call, ShareOfGroup(CPU, 2), lambda: times_s[0])
    assert found == pytest.approx(call_s)
    assert len(made) == pytest.approx(2 + calls, rel=0.11)


@pytest.mark.parametrize(
    ("parts", "tick_s", "shown_s"),
    [((0.4, 0.6), 1e-6, 8.0), ((1.0, 0.9), 1e-6, 11.0), ((0.4, 0.6), 0.2, 11.0)],
)
def test_ranks_that_share_a_core_have_their_part_of_it(
    monkeypatch: pytest.MonkeyPatch, parts: tuple[float, float], tick_s: float, shown_s: float
) -> None:
    """Ranks that have half of a core on average take twice their own 4 s; with nearly all of one,
    or where their own clock ticks too slowly to tell, the clock counts."""
    passed = SimpleNamespace(s=0.0)

    class Two(ShareOfGroup):  # type: ignore[misc]
        def gather(self, values: Sequence[float]) -> list[list[float]]:
            return [[*values], [values[0] * parts[1] / parts[0]]]

    def computed(*_: int) -> None:
        passed.s += 1e-3

    monkeypatch.setattr(torch, "randn", computed)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(time, "monotonic", lambda: passed.s)
    monkeypatch.setattr(time, "thread_time", lambda: parts[0] * passed.s // tick_s * tick_s)
    shown = even_clock(Two(CPU, 2), lambda: 11.0)
    monkeypatch.setattr(time, "thread_time", lambda: 4.0)
    assert shown() == pytest.approx(shown_s, rel=0.01)


def test_without_kernels_nothing_is_timed() -> None:
    assert timer_of_share().times([], []) == ([], [], [], [])


def test_kernels_steps_shares_and_a_launch_each_have_their_time() -> None:
    """Times come in the order that was asked for."""
    asked = GateCheck(workload=find("axes-2d", "verify"), strategy="ulysses")
    timer = timer_of_share()
    large = GEMM.model_copy(update={"shape": [1, 512, 512, 512]})
    seconds, (alone_s,), (share_s,), (together_s,) = timer.times(
        [large, PASS, ATTENTION, large], [asked]
    )
    short_s, long_s = (sum(each) for each in (seconds[1:3], seconds[::3]))
    assert 0 < 10 * short_s < min(long_s, alone_s, share_s, together_s)
    assert timer.launch() > 0


def test_steps_come_between_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evenly, each with its share and itself with messages right behind it."""
    asked = [GateCheck(workload=find("axes-2d", "verify"), strategy=x) for x in ("dsp", "ring")]
    made: list[str] = []

    def step(_: KernelTimer, each: GateCheck, transports: Callable[[], Transports]) -> Call:
        found = transports().strategy
        made.append(f"{each.strategy} of {found.size}")
        return lambda: None

    monkeypatch.setattr(KernelTimer, "_step", step)
    monkeypatch.setattr(kernel_times, "ROUNDS", 1)
    monkeypatch.setattr(kernel_times, "prepared", lambda *_: made.append("kernel") or list)
    blocks_s: list[float] = []
    monkeypatch.setattr(kernel_times, "seconds_of", lambda *x: blocks_s.append(x[-1]) or 1.0)
    timer_of_share().times([PASS] * 6, asked)
    steps = [f"{name} of {ranks}" for name in ("dsp", "ring") for ranks in (1, 2, 2)]
    assert made == [name for step in steps for name in ("kernel", step)]
    assert blocks_s == [None, kernel_times.STEPS_S, None, kernel_times.STEPS_S, None] * 2, (
        "steps take longer"
    )


def test_a_step_with_messages_takes_what_the_slowest_rank_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a launch has it, over those that fill a block; what the first sets up does not count."""
    clock, taken_s = SimpleNamespace(s=0.0), iter([9.0, 0.04, 0.05, 0.03])

    class Two(ShareOfGroup):  # type: ignore[misc]
        def largest(self, values: Sequence[float]) -> list[float]:
            return [2 * each for each in values]

    def step() -> None:
        clock.s += next(taken_s)

    observer = Observer(times=PhaseTimes(now_s=lambda: clock.s))
    timer = KernelTimer(Two(CPU, 2), observer, lambda: clock.s)
    monkeypatch.setattr(KernelTimer, "_step", lambda *_: step)
    asked = GateCheck(workload=find("axes-2d", "verify"), strategy="dsp")
    assert timer._together(asked) == pytest.approx(0.08)
    assert next(taken_s, None) is None


def test_kernels_count_at_the_speed_around_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same work takes half as long from where the processor is twice as fast: one time."""
    looks, taken_s = iter([50.0] * 8 + [100.0] * 8), iter([1.0] * 32 + [0.5] * 32)
    monkeypatch.setattr(kernel_times, "ROUNDS", 1)
    monkeypatch.setattr(kernel_times, "prepared", lambda *_: list)
    monkeypatch.setattr(kernel_times, "seconds_of", lambda *_: next(taken_s))
    timer = timer_of_share()
    timer._speed = SimpleNamespace(look=lambda: next(looks))
    seconds, _, _, _ = timer.times([PASS] * 64, [])
    assert timer.cpu_gflop_per_s == 75
    assert seconds == pytest.approx([50 / 75] * 64)
