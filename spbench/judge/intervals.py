"""How much longer one thing takes than another, and how sure that is.

The replicate is the launch. Launches of one round ran next to each other, so drift cancels in
their ratio: they are paired. Ratios are averaged as logarithms, and the interval is Student's
t on these: from 3 launches on it holds what it says, where a bootstrap of five holds the truth
in 84 of 100 cases instead of 95 (``benchmarks/judge_power.py``, docs/decisions/0015).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

CONFIDENCE = 0.95
LEAST_LAUNCHES = 3
"""With fewer there is a range, no interval: two launches say next to nothing of a spread."""
MOST_LAUNCHES = 1000
"""More than these are never advised."""


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """What is known of a ratio of two times: ``after`` over ``before``, above 1 is slower."""

    log: float
    """Mean of the logarithms of the launches' ratios."""
    error: float
    """Its standard error."""
    freedom: float
    """Degrees of freedom of that error."""
    launches: int
    """Of the side that has fewer."""
    is_paired: bool

    @property
    def value(self) -> float:
        return math.exp(self.log)

    def interval(self) -> tuple[float, float]:
        """The two-sided interval; infinitely wide below three launches."""
        half = self._half(self.error, self.freedom)
        return exp(self.log - half), exp(self.log + half)

    def p_above(self, limit: float) -> float:
        """How probable so high a ratio is where the true one is ``limit``: one-sided."""
        return self._p(self.log - math.log(limit))

    def p_below(self, limit: float) -> float:
        """How probable so low a ratio is where the true one is ``limit``: one-sided."""
        return self._p(math.log(limit) - self.log)

    def launches_needed(self, limit: float) -> int | None:
        """Launches after which the interval would lie on one side of ``limit``.

        If value and spread stay what they are; None above ``MOST_LAUNCHES``, or where there
        are too few to know a spread.
        """
        gap = abs(self.log - math.log(limit))
        if self.launches < LEAST_LAUNCHES:
            return None
        spread, lost = self.error * math.sqrt(self.launches), self.launches - 1
        for launches in range(self.launches, MOST_LAUNCHES + 1):
            freedom = self.freedom * (launches - 1) / lost
            if self._half(spread / math.sqrt(launches), freedom) < gap:
                return launches
        return None

    def _half(self, error: float, freedom: float) -> float:
        if self.launches < LEAST_LAUNCHES:
            return math.inf
        return quantile(freedom) * error

    def _p(self, distance: float) -> float:
        from scipy.special import stdtr

        if self.launches < LEAST_LAUNCHES:
            return 1.0
        if self.error == 0.0:
            return 0.0 if distance > 0 else 1.0
        return float(stdtr(self.freedom, -distance / self.error))


def paired_rounds(before: Mapping[str, float], after: Mapping[str, float]) -> list[str]:
    """The rounds that both sides have, if they are enough to go by; else none.

    Three are, and so are fewer where a side has no others.
    """
    shared = [name for name in before if name in after]
    enough = min(LEAST_LAUNCHES, len(before), len(after))
    return shared if len(shared) >= enough else []


def ratio(before: Mapping[str, float], after: Mapping[str, float]) -> Ratio | None:
    """Of times by round: of the paired rounds, if there are any.

    Otherwise the launches did not run next to each other, and their spreads add up (Welch).
    None where a side has no launch.
    """
    if not before or not after:
        return None
    if shared := paired_rounds(before, after):
        logs = [math.log(after[name] / before[name]) for name in shared]
        log, variance = _mean_and_variance(logs)
        n = len(logs)
        return Ratio(
            log=log, error=math.sqrt(variance / n), freedom=n - 1.0, launches=n, is_paired=True
        )
    return _welch([*before.values()], [*after.values()])


def _welch(before: Sequence[float], after: Sequence[float]) -> Ratio:
    sides = [[math.log(value) for value in side] for side in (before, after)]
    (old, old_variance), (new, new_variance) = map(_mean_and_variance, sides)
    parts = [old_variance / len(before), new_variance / len(after)]
    fewest = min(len(before), len(after))
    below = sum(
        part**2 / (len(side) - 1) for part, side in zip(parts, sides, strict=True) if len(side) > 1
    )
    return Ratio(
        log=new - old,
        error=math.sqrt(sum(parts)),
        freedom=sum(parts) ** 2 / below if below else float(max(fewest - 1, 1)),
        launches=fewest,
        is_paired=False,
    )


def _mean_and_variance(values: Sequence[float]) -> tuple[float, float]:
    mean = math.fsum(values) / len(values)
    squares = math.fsum((value - mean) ** 2 for value in values)
    return mean, squares / max(1, len(values) - 1)


def around(values: Sequence[float]) -> tuple[float, float] | None:
    """The interval of what launches took, by Student's t on logarithms; at least their median.

    None below three launches.
    """
    if len(values) < LEAST_LAUNCHES:
        return None
    log, variance = _mean_and_variance([math.log(value) for value in values])
    half = quantile(len(values) - 1) * math.sqrt(variance / len(values))
    median = statistics.median(values)
    return min(exp(log - half), median), max(exp(log + half), median)


@cache
def quantile(freedom: float, below: float = (1 + CONFIDENCE) / 2) -> float:
    """Of Student's t: so much of it lies below. ``CONFIDENCE`` lies within plus and minus this,
    unless told otherwise."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, below))


def holm(p_values: Sequence[float], alpha: float) -> list[bool]:
    """Which of several hypotheses fall, so that a true one falls with ``alpha`` at most."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    fallen = [False] * len(p_values)
    for place, i in enumerate(order):
        if p_values[i] > alpha / (len(p_values) - place):
            break
        fallen[i] = True
    return fallen


def exp(log: float) -> float:
    """Infinite where a float does not hold it."""
    return math.exp(log) if log < 700 else math.inf
