"""Times steps: warm-up until steady, then as many iterations as asked for.

Ranks start each iteration together, outside the clock, and the clock stops when the rank's
device is done. Python collects its garbage between blocks, never inside one: its full collection
takes as long as several steps, and the slowest of many ranks meets it in most of them. The clock
is an argument, so that tests can bring their own.
"""

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import final

import torch

from spbench.comm.group import Group
from spbench.workload.case import MeasurementBudget

Call = Callable[[], object]
Clock = Callable[[], float]
STEADY = 0.02
"""Windows whose times differ by no more are alike, but for half the error of that difference."""
WINDOW_S = 1.0
"""Seconds of each of the two windows that are compared: over shorter ones a clock that sinks for
seconds moves by no more than steps scatter."""
WINDOW = 3
"""Fewest steps of a window."""
LEAST_WARMUP_S = {"cpu": 0.0, "cuda": 3.0}
"""A GPU takes seconds from its idle clock to that of full load, and under its power cap."""

BLOCK_S: dict[str, float] = {"cpu": 0.004, "cuda": 0.02}
"""Seconds of a block of calls; where ranks take turns of a core, seconds of processor time. In
longer blocks a GPU's clock sinks under its power cap by more than in a step."""
LONG_S = 0.1
"""A call on a CPU beside which what its first sets up takes little: one such call is enough."""
MOST_CALLS = 1000
"""Calls of a block at most."""
CROWDED_S, CROWDED, FINE = 0.4, 0.8, 50
"""Seconds in which ranks see whether they share cores, the part of a core that each has if so, and
looks at a rank's own clock that differ meanwhile: with fewer it is too coarse to tell."""
SIDE, PRODUCTS = 256, 5
"""Rows and columns of the product that tells a processor's speed, and how often one look has it:
first as often for nothing, while threads wake up."""


@final
class ProcessorSpeed:
    """GFLOP/s of one fixed product: how fast the processor is right now, for a rank's threads.

    Where cores share a chip with others' work it changes by a half within a minute. The time is
    that of the calling thread while it has a core, so that equal numbers of threads compare.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self._left, self._right, self._out = torch.randn(3, SIDE, SIDE)
        self.look()  # which sets up the library

    def look(self) -> float:
        """The rate of the median of a few products, which all ranks compute at the same time; 0
        where the clock of a thread is too coarse to tell."""
        self._group.barrier()
        taken_s = []
        for _ in range(2 * PRODUCTS):
            start_s = time.thread_time()
            torch.mm(self._left, self._right, out=self._out)
            taken_s.append(time.thread_time() - start_s)
        # The first half wakes threads up and fills caches.
        took_s = statistics.median(taken_s[PRODUCTS:])
        # A product of two 256 x 256 matrices is 256^3 multiplications and as many additions.
        return 2 * SIDE**3 / took_s / 1e9 if took_s else 0.0


def even_clock(group: Group, now_s: Clock) -> Clock:
    """The clock of ranks that compute side by side: ``now_s``, or where ranks share cores a rank's
    processor time over the part of a core that ranks have on average while all compute. There the
    clock shows others' turns in one call, and in the next none; in a step they all have theirs. All
    ranks ask for it at once, and before anything is timed."""
    if group.device.type == "cuda" or group.size == 1:
        return now_s
    group.barrier()
    began_s, looks = time.monotonic(), {time.thread_time()}
    while (passed_s := time.monotonic() - began_s) < CROWDED_S:
        torch.randn(SIDE, SIDE)
        looks.add(time.thread_time())
    is_told = len(looks) >= FINE and torch.get_num_threads() == 1
    mine = (max(looks) - min(looks)) / passed_s if is_told else 0.0
    shares = [share for (share,) in group.gather([mine])]
    part = statistics.fmean(shares) if all(shares) else 1.0  # 0: some rank's clock is too coarse
    return (lambda: time.thread_time() / part) if part < CROWDED else now_s


def seconds_of(
    call: Call, group: Group, now_s: Clock, block_s: float | None = None, *, waits: bool = True
) -> float:
    """Seconds of one call, the mean of a block of calls.

    Parameters
    ----------
    call
        What is timed; all ranks call with the same.
    group
        The ranks, which agree on how often it is called.
    now_s
        The clock, in seconds.
    block_s
        Seconds of a block; None: as the device needs.
    waits
        Whether the device is waited for; else it is the time of the host alone.

    Returns
    -------
    float
        Seconds of one call.
    """

    def block(calls: int) -> float:
        start = now_s()
        for _ in range(calls):
            call()
        if waits:
            group.synchronise()
        took_s = now_s() - start
        group.synchronise()
        return took_s / calls

    first_s = block(1)
    (negated_s,) = group.largest([-first_s])  # ranks agree on the shortest: the largest, negated
    if waits and group.device.type == "cpu" and -negated_s >= LONG_S:
        return first_s
    once_s = block(1)  # what is set up by the first call is not its time
    calls = min(MOST_CALLS, int((block_s or BLOCK_S[group.device.type]) / max(once_s, 1e-7)))
    return block(calls) if calls > 1 else once_s


@final
@dataclass(kw_only=True)
class Stopwatch:
    """Runs a step again and again on all ranks of ``group``."""

    group: Group
    now_s: Clock
    spent_s: float = 0.0
    """Seconds of all steps so far."""

    def once(self, step: Call) -> tuple[float, float]:
        """Milliseconds of one step of this rank, all ranks starting together, and of its call
        alone: behind that the device may still work."""
        self.group.barrier()  # outside the clock
        start = self.now_s()
        step()
        issued = self.now_s()
        self.group.synchronise()
        took_s = self.now_s() - start
        self.spent_s += took_s
        return took_s * 1e3, (issued - start) * 1e3

    def warm_up(self, step: Call, budget: MeasurementBudget) -> list[float]:
        """Steps until they are steady (``is_steady``); the slowest rank's milliseconds.

        At least ``min_warmup`` steps, at most ``max_warmup``, and beyond ``min_warmup`` at most
        twice ``seconds``, or four times where two windows of long steps need them.
        """
        slowest: list[float] = []
        while len(slowest) < budget.max_warmup:
            slowest += self.group.largest(self.once(step)[:1])
            # Steps so long that six of them take the time get twice as much: without two windows
            # nothing can be called steady.
            most_s = budget.seconds * (2 if len(slowest) >= 2 * WINDOW else 4)
            if len(slowest) >= budget.min_warmup and (
                self.is_warm(slowest) or sum(slowest) / 1e3 > most_s
            ):
                break
        return slowest

    def is_warm(self, slowest_ms: Sequence[float]) -> bool:
        """Whether a warm-up of these steps made them steady."""
        least_s = LEAST_WARMUP_S[self.group.device.type]
        return sum(slowest_ms) / 1e3 >= least_s and is_steady(slowest_ms)

    def time(self, step: Call, iterations: int) -> tuple[list[float], list[float]]:
        """This rank's milliseconds of each iteration, and of its call alone."""
        with garbage_kept():
            both = [self.once(step) for _ in range(iterations)]
        return [took for took, _ in both], [issued for _, issued in both]


def is_steady(times_ms: Sequence[float]) -> bool:
    """Whether the last two windows, of a second and three steps or more each, are alike: they
    share no step, and differ by at most 2 % and half the standard error of their difference."""
    last = _window(times_ms)
    # The window before the last one, of the steps that are left.
    before = _window(times_ms[: len(times_ms) - len(last)])
    if not last or not before:
        return False
    early, late = statistics.fmean(before), statistics.fmean(last)
    # The standard error of the difference of two means.
    squared = _squared_error(before, early) + _squared_error(last, late)
    return abs(late - early) <= STEADY * early + math.sqrt(squared) / 2


def _squared_error(window: Sequence[float], mean: float) -> float:
    """The square of the standard error of a window's mean. It is asked for behind each step of the
    warm-up: statistics.variance, which adds up fractions, takes ten times as long."""
    return sum((took_ms - mean) ** 2 for took_ms in window) / (len(window) - 1) / len(window)


def _window(times_ms: Sequence[float]) -> Sequence[float]:
    """The last steps that fill a window; empty if there are too few."""
    filled_s = 0.0
    for steps, took_ms in enumerate(reversed(times_ms), 1):
        filled_s += took_ms / 1e3
        if filled_s >= WINDOW_S and steps >= WINDOW:
            return times_ms[-steps:]
    return ()


@contextmanager
def garbage_kept() -> Iterator[None]:
    """Inside, Python collects no garbage; what is there before is collected, and then left out."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
