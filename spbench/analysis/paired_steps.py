"""Launches that took turns step by step: each step against the other launch's step next to it."""

import math
import statistics
from collections.abc import Mapping, Sequence

TRIM = 0.25
"""Share of the ratios of steps that is left out at each end."""


def step_ratios(
    before_ms: Mapping[str, Sequence[float]], after_ms: Mapping[str, Sequence[float]]
) -> dict[str, float]:
    """By round, ``after`` over ``before`` where their launches took turns and no step is lost.

    Two steps next to each other met much the same machine (docs/decisions/0021): their ratio says
    more than that of the launches' means.
    """
    return {
        name: math.exp(middle_log_ratio(before_ms[name], steps))
        for name, steps in after_ms.items()
        if steps and before_ms.get(name)
    }


def middle_log_ratio(before_ms: Sequence[float], after_ms: Sequence[float]) -> float:
    """The mean of the middle half of the steps' logarithmic ratios (docs/decisions/0022), without
    the steps that ran alone, after the other launch had ended."""
    logs = sorted(math.log(new / old) for old, new in zip(before_ms, after_ms, strict=False))
    cut = int(TRIM * len(logs))
    return statistics.fmean(logs[cut : len(logs) - cut])
