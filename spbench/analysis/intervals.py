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
from functools import cache, cached_property

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
    variances: tuple[float, ...]
    """Of the logarithms: of the rounds' ratios, or of each side's launches."""
    counts: tuple[int, ...]
    """Of these rounds, or of the launches before and after."""

    @property
    def is_paired(self) -> bool:
        return len(self.counts) == 1

    @property
    def launches(self) -> int:
        """Of the side that has fewer."""
        return min(self.counts)

    @cached_property
    def error(self) -> float:
        """Standard error of ``log``."""
        return error_of(self.variances, self.counts)

    @cached_property
    def freedom(self) -> float:
        """Degrees of freedom of that error."""
        return freedom_of(self.variances, self.counts)

    @property
    def value(self) -> float:
        return math.exp(self.log)

    def interval(self) -> tuple[float, float]:
        """The two-sided interval; infinitely wide below three launches."""
        if self.launches < LEAST_LAUNCHES:
            return 0.0, math.inf
        half = quantile(self.freedom) * self.error
        return exp(self.log - half), exp(self.log + half)

    def p_above(self, limit: float) -> float:
        """How probable so high a ratio is where the true one is ``limit``: one-sided."""
        from scipy.special import stdtr

        distance = self.log - math.log(limit)
        if self.launches < LEAST_LAUNCHES:
            return 1.0
        if self.error == 0.0:
            return 0.0 if distance > 0 else 1.0
        return float(stdtr(self.freedom, -distance / self.error))

    def launches_needed(self, limit: float, below: float = (1 + CONFIDENCE) / 2) -> int | None:
        """Launches, of each side, after which the interval would lie on one side of ``limit``.

        If value and spreads stay what they are; None above ``MOST_LAUNCHES``, or where there
        are too few to know a spread. ``below``: so much lies below the interval's upper end.
        """
        gap = abs(self.log - math.log(limit))
        if self.launches < LEAST_LAUNCHES:
            return None
        for launches in range(self.launches, MOST_LAUNCHES + 1):
            counts = [launches] * len(self.counts)
            freedom = freedom_of(self.variances, counts)
            if quantile(freedom, below) * error_of(self.variances, counts) < gap:
                return launches
        return None


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
        return Ratio(log=log, variances=(variance,), counts=(len(logs),))
    return _welch([*before.values()], [*after.values()])


def _welch(before: Sequence[float], after: Sequence[float]) -> Ratio:
    sides = [[math.log(value) for value in side] for side in (before, after)]
    (old, old_variance), (new, new_variance) = map(_mean_and_variance, sides)
    return Ratio(
        log=new - old, variances=(old_variance, new_variance), counts=(len(before), len(after))
    )


def error_of(variances: Sequence[float], counts: Sequence[int]) -> float:
    """Standard error of a mean, or of the difference of two, of so many values each."""
    return math.sqrt(sum(v / n for v, n in zip(variances, counts, strict=True)))


def freedom_of(variances: Sequence[float], counts: Sequence[int]) -> float:
    """Degrees of freedom of that error (Welch and Satterthwaite)."""
    if len(counts) == 1:
        return counts[0] - 1.0
    parts = [v / n for v, n in zip(variances, counts, strict=True)]
    below = sum(part**2 / (n - 1) for part, n in zip(parts, counts, strict=True) if n > 1)
    return sum(parts) ** 2 / below if below else float(max(min(counts) - 1, 1))


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
