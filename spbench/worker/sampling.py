"""How long to measure: block by block, until the median is known well enough.

    timed ▪▪▪  silent ▪▪▪  timed ▪▪▪  silent ▪▪▪  ...

Timed and silent steps take turns, so that a machine that drifts drifts for both. Behind each
timed block the ranks exchange its times, outside the clock: all of them see the slowest
rank's, so all of them stop after the same block. Which cap ended it is part of the result.

A launch that stops by precision may still be off by more than that. Its iterations are correlated
and it looks again and again until they agree, so its interval is too narrow: with noise of 2 %
that is AR(1) with 0.8, four in ten of launches with steps of 50 ms are off by more than 1 %.
That is why launches, not iterations, are the replicates of every verdict. What a launch counts as
is made of its iterations by ``typical``.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from spbench.workload.case import MeasurementBudget

BLOCKS = 10
"""Planned number of blocks; the warm-up's last median says how many steps a block then has."""
SOONEST = 10
"""A tenth of the wanted seconds passes before times may be called precise: steps that follow
each other at once agree about a moment, not about the machine."""
TAIL = 40
"""One part in 40 may lie beyond each end: an interval of 95 %."""

Block = Callable[[int], list[float]]
"""Runs this number of steps; gives this rank's milliseconds of each."""
StoppedBy = Literal["precision", "seconds", "iterations"]


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """This rank's milliseconds in both passes, and what ended them."""

    timed_ms: list[float]
    silent_ms: list[float]
    stopped_by: StoppedBy


def sample(
    timed: Block,
    silent: Block | None,
    largest: Callable[[Sequence[float]], list[float]],
    budget: MeasurementBudget,
    typical_ms: float,
) -> Sampled:
    """Blocks until ``stop``.

    Parameters
    ----------
    timed, silent
        Run a number of steps, as they are and without communication; None: none silent.
    largest
        Numbers element by element over the ranks; all must call.
    budget
        When to stop.
    typical_ms
        What a step took at the end of the warm-up.

    Returns
    -------
    This rank's milliseconds in both passes, and what ended them.
    """
    # 300 steps of 10 ms in 3 s: ten blocks of 30, of which each ends in an exchange of times.
    block = math.ceil(planned(typical_ms, budget) / BLOCKS)
    timed_ms: list[float] = []
    silent_ms: list[float] = []
    slowest: list[float] = []
    while (reason := stop(slowest, budget)) is None:
        # The last block is shorter where the cap comes first.
        steps = min(block, budget.max_iterations - len(slowest))
        new = timed(steps)
        timed_ms += new
        slowest += largest(new)
        if silent is not None:
            silent_ms += silent(steps)
    return Sampled(timed_ms=timed_ms, silent_ms=silent_ms, stopped_by=reason)


def planned(typical_ms: float, budget: MeasurementBudget) -> int:
    """How many steps fill ``seconds``, between the least and the most allowed."""
    wanted = round(budget.seconds * 1e3 / max(typical_ms, 1e-6))
    return min(max(wanted, budget.min_iterations), budget.max_iterations)


def stop(slowest_ms: Sequence[float], budget: MeasurementBudget) -> StoppedBy | None:
    """What ends the sampling after these steps; None: nothing yet."""
    if len(slowest_ms) >= budget.max_iterations:
        return "iterations"
    if len(slowest_ms) < budget.min_iterations:
        return None
    spent_ms, wanted_ms = sum(slowest_ms), budget.seconds * 1e3
    if spent_ms * SOONEST >= wanted_ms and half_width(slowest_ms) < budget.precision:
        return "precision"
    return "seconds" if spent_ms >= wanted_ms else None


def half_width(times: Sequence[float]) -> float:
    """Half the width of the median's 95 % interval, over the median; infinite below six times.

    Distribution-free: between the k-th smallest and the k-th largest, with the largest k for
    which at most 1/40 of the binomial distribution of n fair coins lies below k (David and
    Nagaraja, Order Statistics, 7.1).
    """
    n, k, below = len(times), 0, 0
    # In whole numbers: P(fewer than k + 1 of n coins) = (below + C(n, k)) / 2^n <= 1 / TAIL.
    while (below + math.comb(n, k)) * TAIL <= 2**n:
        below += math.comb(n, k)
        k += 1
    if k == 0:
        return math.inf
    ordered = sorted(times)
    # Of 20 times k is 6: from the 6th smallest to the 6th largest, which is ordered[14].
    return (ordered[n - k] - ordered[k - 1]) / 2 / statistics.median(ordered)


def uncertainty_ms(times: Sequence[float]) -> float:
    """Half the width of the 95 % interval of their typical time; of few times their range."""
    half = half_width(times)
    return max(times) - min(times) if math.isinf(half) else half * statistics.median(times)


def slowest(times: Sequence[list[float] | None]) -> list[float]:
    """Each iteration takes as long as its slowest rank."""
    present = [of_rank for of_rank in times if of_rank]
    return [max(ranks) for ranks in zip(*present, strict=True)] if present else []


TRIMMED = 10
"""One part in so many is left out at each end of a launch's times."""


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
    out = max(1, len(ordered) // TRIMMED) if len(ordered) >= 3 else 0  # at each end
    # Of 25 times 2 are left out at each end; of 3 the middle one is left.
    middle = ordered[out : len(ordered) - out]
    return math.fsum(middle) / len(middle)


def outer_deciles(times: Sequence[float]) -> tuple[float, float]:
    """The tenth and the ninetieth percentile."""
    deciles = statistics.quantiles(times, n=10, method="inclusive") if len(times) > 1 else times
    return deciles[0], deciles[-1]
