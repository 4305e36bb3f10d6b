"""The order in which a rank measures, and that ranks of different speed stay together.

Real steps of ranks that are threads, with a clock of their own for each.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from helpers.golden import Golden
from helpers.thread_group import ThreadGroup

from spbench.comm.fake import SilentTransport
from spbench.comm.group import Group
from spbench.comm.threaded import ThreadRendezvous, ThreadTransport, run_rank_threads
from spbench.results.conditions import Conditions
from spbench.strategies.registry import load
from spbench.worker import measure as measuring
from spbench.worker import memory
from spbench.worker.observer import Observer, PhaseTimes
from spbench.worker.step import Step
from spbench.worker.timer import Stopwatch
from spbench.worker.witness import why_silent_differs
from spbench.workload.case import Case, MeasurementBudget
from spbench.workload.catalogue import find, with_settings

TINY = with_settings(
    find("axes-2d", "verify"), ["axes={time: 2, space: 2}", "depth=1", "block=[{attention: space}]"]
)
FIRST = r"SxSx(Sx)+Ssxxm"
"""Up to the first block."""
WAIT_S = 10.0
"""Ranks that do different things wait for each other in vain."""


def measured(
    ranks: int, budget: MeasurementBudget, clock_of: Callable[[int], Iterator[float]]
) -> list[dict[str, Any]]:
    """What ``measure`` finds on each of the ranks, whose clocks say what ``clock_of`` gives."""
    case = Case(workload=TINY, strategy="dsp", ranks=ranks, device="cpu", budget=budget)
    meetings = [ThreadRendezvous(ranks, WAIT_S) for _ in range(3)]

    def rank_main(transport: ThreadTransport) -> dict[str, Any]:
        clock = clock_of(transport.rank)
        group = ThreadGroup(transport.rank, meetings)
        observer = Observer(times=PhaseTimes(lambda: next(clock)))
        return measuring.measure(case, load(case.strategy).on(TINY, ranks), group, observer)

    return run_rank_threads(ranks, rank_main)


def steady(rank: int) -> Iterator[float]:
    """10 ms a step, half of it until its call returns."""
    return itertools.count(0.0, 0.005)


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A letter for each thing that is done: S a step, s a silent one, x an exchange of times,
    m the first look at the machine, l a later one, e the last."""
    done: list[str] = []
    real = Step.__call__

    def step(self: Step, *args: Any) -> Any:
        both = (self.comm.transport, self.gradient_comm.transport)
        silent = [isinstance(transport, SilentTransport) for transport in both]
        done.append("s" if all(silent) else "?" if any(silent) else "S")
        return real(self, *args)

    class Machine:
        def __init__(self, group: Group) -> None:
            done.append("m")

        def look(self, is_silent: bool = False) -> None:
            done.append("l")

        def seen(self) -> Conditions:
            done.append("e")
            return Conditions()

    exchange = ThreadGroup._largest

    def largest(self: ThreadGroup, values: Sequence[float]) -> list[float]:
        done.append("x")
        return exchange(self, values)

    monkeypatch.setattr(Step, "__call__", step)
    monkeypatch.setattr(ThreadGroup, "_largest", largest)
    monkeypatch.setattr(measuring, "Machine", Machine)
    return done


def test_silent_blocks_are_silent_and_looks_in_their_place(order: list[str]) -> None:
    """Two steps for memory, an exchange behind each, warm-up, a real and a silent step that are
    looked at, the first look; then blocks of two: timed, a look at once, the exchange, silent, a
    look at once, whether all ranks had memory for it; and one more silent and real step. Not a step
    of a silent block sends, and not one of a timed one does not.
    """
    (fields,) = measured(1, MeasurementBudget(min_iterations=20, max_iterations=20), steady)
    assert re.fullmatch(FIRST + "(SSlxsslx){10}esxxSx", "".join(order)), "".join(order)
    assert (len(fields["step_ms"]), len(fields["compute_ms"])) == (20, 20)
    assert fields["attention_kernel"] == "flash"


def test_without_silent_steps_there_are_none(order: list[str]) -> None:
    """Without silent steps none is run, neither in warm-up nor between timed blocks."""
    budget = MeasurementBudget(min_iterations=20, max_iterations=20, silent=False)
    (fields,) = measured(1, budget, steady)
    assert re.fullmatch(r"SxSx(Sx)+Sm(SSlx){10}eSx", "".join(order)), "".join(order)
    assert fields["compute_ms"] is None


def test_ranks_of_different_speed_stop_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of one size, as many, for one reason: what the slowest rank's times say. By its own
    times the first rank would take blocks twice as large, and be content with the first."""
    blocks: dict[int, list[int]] = {0: [], 1: []}
    real = Stopwatch.time

    def noted(self: Stopwatch, step: Callable[[], object], steps: int) -> list[float]:
        blocks[self.group.rank].append(steps)
        return real(self, step, steps)

    def clock_of(rank: int) -> Iterator[float]:
        scatter = random.Random(rank)
        return itertools.accumulate(
            0.01 if rank == 0 else scatter.uniform(0.01, 0.03) for _ in itertools.count()
        )

    monkeypatch.setattr(Stopwatch, "time", noted)
    fast, slow = measured(2, MeasurementBudget(seconds=2.0), clock_of)
    assert blocks[0] == blocks[1]
    _, *of_both_passes, _ = blocks[0]  # around them silent steps that are looked at
    assert len(set(of_both_passes)) == 1 and len(of_both_passes) > 2
    assert of_both_passes[0] < 10
    assert fast["stopped_by"] == slow["stopped_by"]
    assert fast["warmup"] == slow["warmup"]
    assert fast["step_ms"] == pytest.approx([20.0] * len(fast["step_ms"]))
    assert max(slow["step_ms"]) > 30.0


@pytest.mark.parametrize(
    ("step", "kind"),
    [pytest.param(0, torch.OutOfMemoryError, marks=pytest.mark.long), (3, RuntimeError)],
)
def test_a_silent_pass_without_memory_leaves_only_its_times_blank(
    monkeypatch: pytest.MonkeyPatch, step: int, kind: type[Exception]
) -> None:
    """One rank runs out in a silent step, the first or a later one; both ranks finish their timed
    steps, give silent ones up together, and say why."""
    counts = {0: itertools.count(), 1: itertools.count()}
    real = Step.__call__

    def short_of_memory(self: Step, *args: Any) -> Any:
        out = real(self, *args)
        is_silent = isinstance(self.comm.transport, SilentTransport)
        if is_silent and next(counts[self.rank]) == step and self.rank == 1:
            raise kind("CUDA out of memory. Tried to allocate 2.00 GiB.\nMore")
        return out

    monkeypatch.setattr(Step, "__call__", short_of_memory)
    budget = MeasurementBudget(min_iterations=20, max_iterations=20)
    first, second = measured(2, budget, steady)
    for fields in (first, second):
        assert (len(fields["step_ms"]), fields["compute_ms"]) == (20, None)
    assert "2.00 GiB." in second["compute_note"] and "another rank" in first["compute_note"]


def test_no_memory_for_both_passes(
    monkeypatch: pytest.MonkeyPatch, order: list[str], golden: Golden
) -> None:
    """Where the allocator empties its cache for a silent step, a timed one would be short next:
    silent steps are given up, and a step outside the clock fills the cache again."""
    retries = itertools.chain([0] * 7, itertools.repeat(1))
    monkeypatch.setattr(memory, "alloc_retries", lambda _: next(retries))
    budget = MeasurementBudget(min_iterations=20, max_iterations=20)
    (fields,) = measured(1, budget, steady)
    assert re.fullmatch(FIRST + "(SSlxsslx){2}SSlxsslxS(SSlx){7}eSx", "".join(order))
    assert (len(fields["step_ms"]), fields["compute_ms"]) == (20, None)
    golden(fields["compute_note"])


def test_a_number_or_two_is_no_work(golden: Golden) -> None:
    """A GPU's silent step of one rank, which has nothing to send, writes 8 bytes more."""
    assert why_silent_differs(8, 0) == ""
    golden(why_silent_differs(65, 0))
    assert why_silent_differs(364, 100) == ""
