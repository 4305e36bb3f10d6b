"""Statistical power: the slowdown that a check against a baseline detects.

Launches of a baseline differ, and the error of their mean stays in every check against it: with
few of them only a large slowdown is detected, however often the check launches.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import pandas

from spbench.analysis.comparable import mismatch
from spbench.analysis.intervals import LEAST_LAUNCHES, error_of, exp, freedom_of, quantile
from spbench.analysis.launches import launches_by
from spbench.analysis.rows import LaunchRow, rows_of
from spbench.analysis.verdict import ALPHA, LAUNCHES, MAX_SLOWDOWN, MOST_TIMES, SHARES

MOST_OF_CHECK = LAUNCHES * MOST_TIMES
POWER = 0.9
"""Share of checks that detect the slowdown, over baselines and checks like these."""


@dataclass(frozen=True, kw_only=True)
class DetectableSlowdown:
    """The case of a baseline in which a slowdown is hardest to detect."""

    row: LaunchRow
    """A launch of the case."""
    launches: int
    """Quiet launches of the case."""
    spread: float
    """Standard deviation of the logarithms of their times: 0.05 is 5 %."""
    slowdown: float
    """The smallest slowdown that is detected: 0.1 is 10 %."""
    with_more: float
    """The smallest slowdown, if the baseline had ``MOST_OF_CHECK`` launches with this spread."""


def quiet_launches(frame: pandas.DataFrame) -> dict[str, int]:
    """The number of quiet launches of each case with launches that are ok; it may be 0."""
    good = frame[frame["status"] == "ok"]
    quiet = (good["noisy"] == "").groupby(good["case"], sort=False).sum()
    return {str(case): int(count) for case, count in quiet.items()}


def hardest_case(frame: pandas.DataFrame) -> DetectableSlowdown | None:
    """The case whose detectable slowdown is largest, for a check with the default limits.

    Only quiet launches count, as in such a check. None if no case has an interval.
    """
    quiet = frame[(frame["status"] == "ok") & (frame["noisy"] == "")]
    cases = launches_by(quiet, ["case"])
    alpha = ALPHA * SHARES[-1] / max(len(cases), 1)  # Holm's for the worst of them, the last look's
    last = {row["case"]: row for row in rows_of(quiet)}
    every = [
        _detectable(last[case], list(launches.ms.values()), alpha)
        for case, launches in cases.items()
        if len(launches.ms) >= LEAST_LAUNCHES
        and not mismatch(launches.setups.values(), launches.setups.values())
    ]
    return max(every, key=lambda case: case.slowdown, default=None)


def _detectable(row: LaunchRow, ms: Sequence[float], alpha: float) -> DetectableSlowdown:
    spread = statistics.stdev(map(math.log, ms))
    return DetectableSlowdown(
        row=row,
        launches=len(ms),
        spread=spread,
        slowdown=detectable_slowdown(spread, len(ms), MOST_OF_CHECK, alpha),
        with_more=detectable_slowdown(spread, MOST_OF_CHECK, MOST_OF_CHECK, alpha),
    )


def detectable_slowdown(spread: float, kept: int, launches: int, alpha: float) -> float:
    """The slowdown that fails ``POWER`` of checks with the usual limit, as 0.1 for 10 %.

    ``kept`` launches of the baseline and ``launches`` of the check differ by ``spread``, the
    standard deviation of their logarithms, which baseline and check estimate each (Welch).
    ``alpha`` is one-sided. Power by the noncentral t; with 3 launches kept it is closer to 0.85,
    as the degrees of freedom are themselves estimated.
    """
    from scipy.special import nctdtrinc

    alike, counts = (1.0, 1.0), (kept, launches)
    freedom = freedom_of(alike, counts)
    away = float(nctdtrinc(freedom, 1 - POWER, quantile(freedom, 1 - alpha)))
    return (1 + MAX_SLOWDOWN) * exp(away * spread * error_of(alike, counts)) - 1
