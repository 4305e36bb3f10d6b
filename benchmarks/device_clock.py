"""Times on a GPU by its own events, for the benchmarks beside this file."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch


def ms_of(run: Callable[[], object], times: int = 10) -> float:
    """Median, by the device's events, behind three runs off the clock."""
    for _ in range(3):
        run()
    took = []
    for _ in range(times):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        took.append(begin.elapsed_time(end))
    return statistics.median(took)
