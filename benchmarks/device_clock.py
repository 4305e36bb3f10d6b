"""Times calls on a GPU by its own events, for the other benchmarks in this folder."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch


def ms_of(run: Callable[[], object], times: int = 10) -> float:
    """Median of ``times`` runs in milliseconds, after three runs that are not timed."""
    for _ in range(3):
        run()
    times_ms = []
    for _ in range(times):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        times_ms.append(begin.elapsed_time(end))
    return statistics.median(times_ms)
