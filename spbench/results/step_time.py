"""What a step takes: one figure of a launch's iterations (docs/decisions/0022)."""

from __future__ import annotations

import math
from collections.abc import Sequence

TRIMMED = 10
"""One part in so many is left out at each end."""


def typical(times: Sequence[float]) -> float:
    """The mean without the fastest and the slowest tenth; of three and more without at least one.

    However long a single hiccup is, it does not count; and on shared cores this scatters less than
    a median, since it goes by nearly all of the times (Tukey and McLaughlin 1963). Raises
    ValueError where there are none.
    """
    if not times:
        raise ValueError("no times, so none is typical")
    ordered = sorted(times)
    out = max(1, len(ordered) // TRIMMED) if len(ordered) >= 3 else 0
    middle = ordered[out : len(ordered) - out]
    return math.fsum(middle) / len(middle)
