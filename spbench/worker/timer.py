"""Times steps: warm-up until steady, then as many iterations as asked for.

Ranks start each iteration together, outside the clock, and the clock stops when the rank's
device is done. The clock is an argument, so that tests can bring their own.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from spbench.comm.group import Group
from spbench.workload.case import MeasurementBudget

STEADY = 0.02
WINDOW = 3


@final
@dataclass(kw_only=True)
class Stopwatch:
    """Runs a step again and again on all ranks of ``group``."""

    group: Group
    now_s: Callable[[], float]
    spent_s: float = 0.0
    """Seconds of all steps so far."""

    def once(self, step: Callable[[], object]) -> float:
        """Milliseconds of one step of this rank, all ranks starting together."""
        self.group.barrier()
        start = self.now_s()
        step()
        self.group.synchronise()
        took_s = self.now_s() - start
        self.spent_s += took_s
        return took_s * 1e3

    def warm_up(self, step: Callable[[], object], budget: MeasurementBudget) -> list[float]:
        """Steps until the last two medians of three agree within 2 %; the slowest rank's ms.

        At least ``min_warmup`` steps, at most ``max_warmup``, and beyond ``min_warmup`` at most
        twice ``seconds``.
        """
        slowest: list[float] = []
        while len(slowest) < budget.max_warmup:
            slowest += self.group.largest([self.once(step)])
            is_long = sum(slowest) / 1e3 > 2 * budget.seconds
            if len(slowest) >= budget.min_warmup and (is_long or _is_steady(slowest)):
                break
        return slowest

    def time(self, step: Callable[[], object], iterations: int) -> list[float]:
        """This rank's milliseconds, one for each iteration."""
        return [self.once(step) for _ in range(iterations)]


def _is_steady(times_ms: list[float]) -> bool:
    if len(times_ms) < WINDOW + 1:
        return False
    last = statistics.median(times_ms[-WINDOW:])
    before = statistics.median(times_ms[-WINDOW - 1 : -1])
    return abs(last - before) <= STEADY * before
