"""From times of collectives to the constants of a level of links.

The smallest message gives the latency, and each larger one the rate of what is left.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from spbench.projection.calibration_fit import constant, curve
from spbench.projection.calibration_times import Timed
from spbench.projection.constants import Constant, Curve
from spbench.projection.hardware import CollectiveRate, Level
from spbench.workload.traffic import OPS, Op

LEAST_S = 1e-7
"""A time that is shorter is not told from none."""
Points = Sequence[tuple[float, float]]
"""Bytes that a rank sends, and seconds."""


@final
@dataclass(frozen=True, kw_only=True)
class TimedCollective:
    """One operation on so many ranks."""

    ranks: int
    points: Points
    hidden: Sequence[float] = ()
    """Parts of messages that a kernel hid, of what it could."""


def timed_collective(timed: Timed, op: Op) -> TimedCollective:
    """All sizes of an operation in a calibration."""
    columns = zip(timed.plan.transfers, timed.sent_bytes, timed.transfers_s, strict=True)
    points = [(sent, seconds) for each, sent, seconds in columns if each.op == op]
    pairs = zip(timed.plan.transfers, timed.hidden, strict=True)
    hidden = [part for each, part in pairs if each.op == op and part is not None]
    return TimedCollective(ranks=timed.plan.ranks, points=points, hidden=hidden)


def level(name: str, timed: Timed, fewest: Timed | None, nominal: Constant | None = None) -> Level:
    """The links between ranks; ``fewest``: times of two ranks, if ``timed`` is of more;
    ``nominal``: the rate of a rank's link in GB/s by its name, where that is known."""
    rates = {}
    for op in OPS:
        few = None if fewest is None or op == "p2p" else timed_collective(fewest, op)
        rates[op] = collective_rate(timed_collective(timed, op), few)
    return Level(name=name, collectives=rates, nominal_gb_per_s=nominal)


def collective_rate(
    timed: TimedCollective, fewest: TimedCollective | None, hop: Constant | None = None
) -> CollectiveRate:
    """Latency and rates; ``fewest``: the same of fewer ranks, from which the time of each further
    rank follows. Without it that is ``hop``, as far as the latency has room for it."""
    latency_s, rates = _latency_and_rates(timed.points)
    beyond_two = timed.ranks - 2
    if fewest is not None and fewest.ranks < timed.ranks:
        few_s, _ = _latency_and_rates(fewest.points)
        each_s = (latency_s - few_s) / (timed.ranks - fewest.ranks)
        hop = constant(1e6 * each_s) if each_s > LEAST_S else None
    hops_s = hop.value / 1e6 * beyond_two if hop else 0.0
    if hops_s >= latency_s - LEAST_S:
        hop, hops_s = None, 0.0
    latency = constant(1e6 * (latency_s - hops_s))
    hidden = statistics.median(timed.hidden) if timed.hidden else None
    return CollectiveRate(latency_us=latency, hop_us=hop, gb_per_s=rates, hidden=hidden)


def _latency_and_rates(points: Points) -> tuple[float, Curve]:
    latency_s = min(seconds for _, seconds in points)
    beyond = [(sent, seconds - latency_s) for sent, seconds in points if seconds > 1.1 * latency_s]
    return latency_s, curve((sent / 1e6, sent / rest / 1e9) for sent, rest in beyond or points)
