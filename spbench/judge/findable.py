"""What a check could find against launches that are kept, while more of them can still be had.

Launches of a baseline differ, and what they are off by together no check can measure away: with
few of them a slowdown has to be large, however often the other side is launched.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from spbench.judge.comparison import launches_that_count, times
from spbench.judge.intervals import LEAST_LAUNCHES, quantile
from spbench.judge.regression import ALPHA, MAX_SLOWDOWN
from spbench.judge.stages import LAUNCHES, SHARES
from spbench.results.record import Record

MOST_OF_CHECK = LAUNCHES * (1 + len(SHARES))
FOUND = 0.9
"""So often it is found."""


@dataclass(frozen=True, kw_only=True)
class Findable:
    """The case of a baseline in which a slowdown is hardest to find."""

    strategy: str
    ranks: int
    launches: int
    spread: float
    """Standard deviation of the logarithms of its launches' times: 0.05 is 5 %."""
    slowdown: float
    """That nine in ten checks find: 0.1 is 10 %."""
    with_more: float
    """The same, if the baseline had ``MOST_OF_CHECK`` launches."""


def hardest(records: Iterable[Record], limit: float = MAX_SLOWDOWN) -> Findable | None:
    """Over all cases that have an interval; None where there is none.

    ``limit``: slowdowns up to this one pass, 0.03 for 3 %.
    """
    cases: dict[str, list[Record]] = {}
    for record in records:
        cases.setdefault(record.case, []).append(record)
    timed = {
        case: list(times(launches_that_count(these)).values()) for case, these in cases.items()
    }
    timed = {case: ms for case, ms in timed.items() if len(ms) >= LEAST_LAUNCHES}
    alpha = ALPHA * SHARES[-1] / max(len(timed), 1)  # Holm's for the worst of them, the last look's
    every = [_of(cases[case][-1], ms, limit, alpha) for case, ms in timed.items()]
    return max(every, key=lambda one: one.slowdown, default=None)


def _of(record: Record, ms: Sequence[float], limit: float, alpha: float) -> Findable:
    spread = statistics.stdev(map(math.log, ms))
    return Findable(
        strategy=record.strategy,
        ranks=record.world_size,
        launches=len(ms),
        spread=spread,
        slowdown=slowdown_found(spread, len(ms), MOST_OF_CHECK, limit, alpha),
        with_more=slowdown_found(spread, MOST_OF_CHECK, MOST_OF_CHECK, limit, alpha),
    )


def slowdown_found(spread: float, kept: int, launches: int, limit: float, alpha: float) -> float:
    """The slowdown that ``FOUND`` of checks find, as 0.1 for 10 %.

    ``kept`` launches of the baseline and ``launches`` of the check differ by ``spread``, the
    standard deviation of their logarithms, which both sides estimate (Welch). ``alpha``:
    one-sided. Power by the noncentral t; with 3 launches it is rather 85 in a hundred, as the
    degrees of freedom are themselves estimated.
    """
    from scipy.special import nctdtrinc

    parts = 1 / kept, 1 / launches
    freedom = sum(parts) ** 2 / (parts[0] ** 2 / (kept - 1) + parts[1] ** 2 / (launches - 1))
    away = float(nctdtrinc(freedom, 1 - FOUND, quantile(freedom, 1 - alpha)))
    return (1 + limit) * math.exp(away * spread * math.sqrt(sum(parts))) - 1
