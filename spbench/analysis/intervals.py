"""How much longer one strategy or version takes than another, and how sure that is.

The replicate is the launch. Launches of one round ran next to each other, so drift cancels in
their ratio: they are paired. Ratios are averaged as logarithms, and the interval is Student's
t on these: from 3 launches on it holds what it says, where a bootstrap of five holds the truth
in 84 of 100 cases instead of 95 (``benchmarks/judge_power.py``, docs/decisions/0015).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

CONFIDENCE = 0.95
LEAST_LAUNCHES = 3
"""Fewest launches with an interval: two say next to nothing about a spread."""
MOST_LAUNCHES = 1000
"""The most launches that are ever advised."""


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """An estimated ratio of two times, ``after`` over ``before``: above 1 is slower."""

    log: float
    """Mean of the logarithms of the launches' ratios."""
    variances: tuple[float, ...]
    """Variance of the logarithms of the rounds' ratios, or of the launches before and after."""
    counts: tuple[int, ...]
    """Numbers of these rounds, or of the launches before and after."""

    @property
    def is_paired(self) -> bool:
        return len(self.counts) == 1

    @property
    def launches(self) -> int:
        """Launches before or after, whichever are fewer."""
        return min(self.counts)

    @cached_property
    def error(self) -> float:
        """Standard error of ``log``."""
        return error_of(self.variances, self.counts)

    @cached_property
    def freedom(self) -> float:
        """Degrees of freedom of ``error``."""
        return freedom_of(self.variances, self.counts)

    @property
    def value(self) -> float:
        return math.exp(self.log)

    @cached_property
    def interval(self) -> tuple[float, float]:
        """The two-sided interval; infinitely wide below three launches."""
        if self.launches < LEAST_LAUNCHES:
            return 0.0, math.inf
        half = quantile(self.freedom) * self.error
        return exp(self.log - half), exp(self.log + half)

    def p_above(self, limit: float) -> float:
        """One-sided probability of so high a ratio where the true one is ``limit``."""
        from scipy.special import stdtr

        distance = self.log - math.log(limit)
        if self.launches < LEAST_LAUNCHES:
            return 1.0
        if self.error == 0.0:
            return 0.0 if distance > 0 else 1.0
        return float(stdtr(self.freedom, -distance / self.error))

    def launches_needed(self, limit: float, below: float = (1 + CONFIDENCE) / 2) -> int | None:
        """Launches before and after that would move the interval off ``limit``.

        Assumes that value and spreads stay the same. None above ``MOST_LAUNCHES``, or where too
        few launches are known for a spread. ``below``: the share below the interval's upper end.
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
    """The rounds with a launch before and after, if they are enough to compare; else none.

    Three are enough, and fewer where the launches before or after have no other rounds.
    """
    shared = [name for name in before if name in after]
    return shared if len(shared) >= min(LEAST_LAUNCHES, len(before), len(after)) else []


def ratio(
    before: Mapping[str, float], after: Mapping[str, float], *, of_all: bool = False
) -> Ratio | None:
    """The ratio of the paired rounds; the times are in milliseconds, by round.

    Without paired rounds the launches did not run next to each other, and their spreads add up
    (Welch). None where there is no launch before or after. ``of_all``: no launch is left out, so
    that the ratio is that of the geometric means; rounds are paired if both have the same.
    """
    if not before or not after:
        return None
    shared = paired_rounds(before, after)
    if shared and not (of_all and before.keys() != after.keys()):
        logs = [math.log(after[name] / before[name]) for name in shared]
        log, variance = _mean_and_variance(logs)
        return Ratio(log=log, variances=(variance,), counts=(len(logs),))
    logs_apart = [[math.log(value) for value in run.values()] for run in (before, after)]
    (old, *variances), (new, *others) = map(_mean_and_variance, logs_apart)
    return Ratio(log=new - old, variances=(*variances, *others), counts=(len(before), len(after)))


def error_of(variances: Sequence[float], counts: Sequence[int]) -> float:
    """Standard error of a mean of ``counts[0]`` values, or of the difference of two means."""
    return math.sqrt(sum(v / n for v, n in zip(variances, counts, strict=True)))


def freedom_of(variances: Sequence[float], counts: Sequence[int]) -> float:
    """Degrees of freedom of ``error_of`` (Welch and Satterthwaite)."""
    if len(counts) == 1:
        return counts[0] - 1.0
    parts = [v / n for v, n in zip(variances, counts, strict=True)]
    below = sum(part**2 / (n - 1) for part, n in zip(parts, counts, strict=True) if n > 1)
    return sum(parts) ** 2 / below if below else float(max(min(counts) - 1, 1))


def _mean_and_variance(values: Sequence[float]) -> tuple[float, float]:
    mean = math.fsum(values) / len(values)
    return mean, math.fsum((value - mean) ** 2 for value in values) / max(1, len(values) - 1)


def geometric_mean(values: Sequence[float]) -> float:
    """The mean of times above 0, whose quotients are mean ratios; exact where all are equal."""
    logs = map(math.log, values)  # as statistics.geometric_mean, in a quarter of its time
    return values[0] if min(values) == max(values) else math.exp(math.fsum(logs) / len(values))


def around(values: Sequence[float]) -> tuple[float, float] | None:
    """The interval of launches' times, by Student's t on logarithms; None below three launches."""
    if len(values) < LEAST_LAUNCHES:
        return None
    log, variance = _mean_and_variance([math.log(value) for value in values])
    return Ratio(log=log, variances=(variance,), counts=(len(values),)).interval


@cache
def quantile(freedom: float, below: float = (1 + CONFIDENCE) / 2) -> float:
    """The quantile of Student's t; ``CONFIDENCE`` lies between minus and plus the default."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, below))


def holm(p_values: Mapping[int, float], alpha: float) -> set[int]:
    """Which hypotheses are rejected, so that any true one is with ``alpha`` at most."""
    rejected = set[int]()
    for passed, i in enumerate(sorted(p_values, key=p_values.__getitem__)):
        # The level is shared by the hypotheses that are left: the first of five has a fifth of it.
        if p_values[i] > alpha / (len(p_values) - passed):
            break
        rejected.add(i)
    return rejected


def exp(log: float) -> float:
    """The exponential; infinite where a float cannot hold it."""
    return math.exp(log) if log < 700 else math.inf
