"""Times steps: warm-up until steady, then as many iterations as it is told.

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
    """On the clock so far, all steps together."""

    def once(self, step: Callable[[], object]) -> float:
        """Milliseconds of one step of this rank, all ranks starting together."""
        self.group.barrier()
        start = self.now_s()
        step()
        self.group.synchronise()
        took_s = self.now_s() - start
        self.spent_s += took_s
        return took_s * 1e3

    def warm_up(self, step: Callable[[], object], effort: MeasurementBudget) -> list[float]:
        """Until the last two medians of three agree within 2 %, or a cap. Slowest rank's ms.

        At the earliest after ``min_warmup`` steps, at the latest after ``max_warmup`` or,
        past ``min_warmup``, once twice ``seconds`` are spent.
        """
        slowest: list[float] = []
        while len(slowest) < effort.max_warmup:
            slowest += self.group.largest([self.once(step)])
            spent_s = sum(slowest) / 1e3
            if len(slowest) >= effort.min_warmup and (
                _is_steady(slowest) or spent_s > 2 * effort.seconds
            ):
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
