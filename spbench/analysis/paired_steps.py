"""Launches of two sides whose steps took turns: each against the other's that ran next to it.

Two steps next to each other met much the same machine (docs/decisions/0021), so their ratio tells
more than that of the launches' means. The mean of the middle half of its logarithms stands for a
pair of launches: that leaves out where something came between (docs/decisions/0022).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

TRIM = 0.25
"""Of the ratios, at each end."""


def step_ratios(
    before_ms: Mapping[str, Sequence[float]], after_ms: Mapping[str, Sequence[float]]
) -> dict[str, float]:
    """By round, ``after`` over ``before`` where their launches took turns and no step is lost."""
    return {
        name: math.exp(middle_log_ratio(before_ms[name], steps))
        for name, steps in after_ms.items()
        if steps and before_ms.get(name)
    }


def middle_log_ratio(before_ms: Sequence[float], after_ms: Sequence[float]) -> float:
    """What one side ran alone, since the other had ended, has no neighbour and is left out."""
    logs = sorted(math.log(new / old) for old, new in zip(before_ms, after_ms, strict=False))
    cut = int(TRIM * len(logs))
    return statistics.fmean(logs[cut : len(logs) - cut])
