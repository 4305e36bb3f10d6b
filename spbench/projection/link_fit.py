"""From a calibration's times of collectives to the constants of a level of links.

The smallest message, of 1 KiB, gives the latency, and each larger one the rate of what is left.
"""

import numpy as np
from scipy.optimize import isotonic_regression

from spbench.projection.calibration_times import Timed, TimedCollective
from spbench.projection.constants import CollectiveRate, Constant, Curve, Level, constant, curve
from spbench.workload.traffic import OPS

LEAST_PART = 0.05
"""Part of the latency that a message takes beyond it, at least: less is not told from none."""
LEAST_S = 1e-7
"""A time that is shorter is not told from none."""


def level(name: str, timed: Timed, fewest: Timed | None, nominal: Constant | None = None) -> Level:
    """The links between ranks; ``fewest``: times of two ranks, if ``timed`` is of more;
    ``nominal``: the rate of a rank's link in GB/s by its name, where that is known."""
    rates = {}
    for op in OPS:
        few = None if fewest is None or op == "p2p" else fewest.collective(op)
        rates[op] = collective_rate(timed.collective(op), few)
    return Level(name=name, ranks=timed.plan.ranks, collectives=rates, nominal_gb_per_s=nominal)


def collective_rate(timed: TimedCollective, fewest: TimedCollective | None) -> CollectiveRate:
    """Latency and rates; ``fewest``: the same of fewer ranks, from which the time of each further
    rank follows, as far as the latency has room for it."""
    latency_s, rates = _latency_and_rates(timed)
    hop: Constant | None = None
    if fewest is not None and fewest.ranks < timed.ranks:
        few_s, _ = _latency_and_rates(fewest)
        each_s = (latency_s - few_s) / (timed.ranks - fewest.ranks)
        hop = constant(1e6 * each_s) if each_s > LEAST_S else None
    hops_s = hop.value / 1e6 * (timed.ranks - 2) if hop else 0.0
    if hops_s >= latency_s - LEAST_S:
        hop, hops_s = None, 0.0
    latency = constant(1e6 * (latency_s - hops_s))
    return CollectiveRate(latency_us=latency, hop_us=hop, gb_per_s=rates)


def _latency_and_rates(timed: TimedCollective) -> tuple[float, Curve]:
    """The smallest message's time, and rates by what all take beyond it, those as fast as it too. A
    message that took longer than a larger one shares its time, as chance moved both: their mean."""
    sizes, taken = zip(*sorted(timed.points), strict=True)
    seconds = isotonic_regression(taken).x
    rates = np.array(sizes) / np.maximum(seconds - seconds[0], LEAST_PART * seconds[0]) / 1e9
    return float(seconds[0]), curve(zip(np.array(sizes) / 1e6, rates, strict=True))
