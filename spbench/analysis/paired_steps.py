"""Launches of two sides whose steps took turns: each against the other's that ran next to it.

Two steps next to each other met much the same machine (docs/decisions/0021), so their ratio tells
more than that of the launches' means. The mean of the middle half of its logarithms stands for a
pair of launches: that leaves out where something came between (docs/decisions/0022).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from spbench.results.iterations import Traces
from spbench.results.record import Record

TRIM = 0.25
"""Of the ratios, at each end."""

Both = tuple[Traces, Traces]
"""Iterations of the launches before and after."""


def in_turns(
    before: Sequence[Record], after: Sequence[Record], traces: Both
) -> Mapping[str, float]:
    """By round, ``after`` over ``before`` where their launches took turns and no step is lost."""
    known = {one.round: one for one in before if one.turns}
    found = {}
    for new in after:
        old = known.get(new.round)
        if old is not None and new.turns:
            steps = traces[0].steps(old), traces[1].steps(new)
            if all(steps):
                found[new.round] = math.exp(middle_log_ratio(*steps))
    return found


def middle_log_ratio(before_ms: Sequence[float], after_ms: Sequence[float]) -> float:
    """What one side ran alone, since the other had ended, has no neighbour and is left out."""
    logs = sorted(math.log(new / old) for old, new in zip(before_ms, after_ms, strict=False))
    cut = int(TRIM * len(logs))
    return statistics.fmean(logs[cut : len(logs) - cut])
