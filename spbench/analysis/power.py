"""What a check could find against launches that are kept, while more of them can still be had.

Launches of a baseline differ, and what their mean is off by stays in every check against it: with
few of them a slowdown has to be large, however often the other side is launched.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import pandas

from spbench.analysis.comparable import mismatch
from spbench.analysis.intervals import LEAST_LAUNCHES, error_of, exp, freedom_of, quantile
from spbench.analysis.launches import launches_by
from spbench.analysis.verdict import ALPHA, LAUNCHES, MAX_SLOWDOWN, MOST_TIMES, SHARES
from spbench.results.reading import records_of
from spbench.results.record import Record

MOST_OF_CHECK = LAUNCHES * MOST_TIMES
POWER = 0.9
"""So often it is found, over baselines and checks that are like these."""


@dataclass(frozen=True, kw_only=True)
class DetectableSlowdown:
    """The case of a baseline in which a slowdown is hardest to find."""

    record: Record
    """A launch of it."""
    launches: int
    """That are quiet."""
    spread: float
    """Standard deviation of the logarithms of their times: 0.05 is 5 %."""
    slowdown: float
    """That is found: 0.1 is 10 %."""
    with_more: float
    """The same, if the baseline had ``MOST_OF_CHECK`` launches that differ as these do."""


def quiet_launches(frame: pandas.DataFrame) -> dict[str, int]:
    """How many each case has that ran; none of its launches may be quiet."""
    good = frame[frame["status"] == "ok"]
    quiet = (good["noisy"] == "").groupby(good["case"], sort=False).sum()
    return {str(case): int(count) for case, count in quiet.items()}


def hardest_case(frame: pandas.DataFrame) -> DetectableSlowdown | None:
    """The case with the largest slowdown, for a check with its usual limits; None: no case has an
    interval. Only quiet launches count, as in a check against launches that ran apart from it."""
    quiet = frame[(frame["status"] == "ok") & (frame["noisy"] == "")]
    cases = launches_by(quiet, ["case"])
    alpha = ALPHA * SHARES[-1] / max(len(cases), 1)  # Holm's for the worst of them, the last look's
    last = {one.case: one for one in records_of(quiet.drop_duplicates("case", keep="last"))}
    every = [
        _of(last[case], list(launches.ms.values()), alpha)
        for case, launches in cases.items()
        if len(launches.ms) >= LEAST_LAUNCHES
        and not mismatch(launches.setups.values(), launches.setups.values())
    ]
    return max(every, key=lambda one: one.slowdown, default=None)


def _of(record: Record, ms: Sequence[float], alpha: float) -> DetectableSlowdown:
    spread = statistics.stdev(map(math.log, ms))
    return DetectableSlowdown(
        record=record,
        launches=len(ms),
        spread=spread,
        slowdown=detectable_slowdown(spread, len(ms), MOST_OF_CHECK, alpha),
        with_more=detectable_slowdown(spread, MOST_OF_CHECK, MOST_OF_CHECK, alpha),
    )


def detectable_slowdown(spread: float, kept: int, launches: int, alpha: float) -> float:
    """The slowdown that fails ``POWER`` of checks with the usual limit, as 0.1 for 10 %.

    ``kept`` launches of the baseline and ``launches`` of the check differ by ``spread``, the
    standard deviation of their logarithms, which each side estimates (Welch). ``alpha``:
    one-sided. Power by the noncentral t; with 3 launches kept it is rather 0.85, as the degrees of
    freedom are themselves estimated.
    """
    from scipy.special import nctdtrinc

    alike, counts = (1.0, 1.0), (kept, launches)
    freedom = freedom_of(alike, counts)
    away = float(nctdtrinc(freedom, 1 - POWER, quantile(freedom, 1 - alpha)))
    return (1 + MAX_SLOWDOWN) * exp(away * spread * error_of(alike, counts)) - 1
