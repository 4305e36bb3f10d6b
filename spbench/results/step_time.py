"""The figures of a launch that are made of the times of its iterations."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

TRIMMED = 10
"""One part in so many is left out at each end of a launch's times."""
MUCH = 0.1
"""Share of a step below which waiting is not worth a warning or a rate, and may be noise."""


def typical(times: Sequence[float]) -> float:
    """The step time of a launch (docs/decisions/0022): the mean of its iterations without the
    fastest and the slowest tenth; of three and more without at least one.

    However long a single hiccup is, it does not count; and on shared cores this scatters less than
    a median, since it goes by nearly all of the times (Tukey and McLaughlin 1963). Raises
    ValueError where there are none.
    """
    if not times:
        raise ValueError("no times, so no typical time")
    ordered = sorted(times)
    out = max(1, len(ordered) // TRIMMED) if len(ordered) >= 3 else 0
    middle = ordered[out : len(ordered) - out]
    return math.fsum(middle) / len(middle)


def outer_deciles(times: Sequence[float]) -> tuple[float, float]:
    """The tenth and the ninetieth percentile."""
    deciles = statistics.quantiles(times, n=10, method="inclusive") if len(times) > 1 else times
    return deciles[0], deciles[-1]
