"""Which level of a cluster's links a run of nccl-tests is of: the innermost that joins its ranks.

A rank's position is its host's, times the devices of a host, plus its device, so that ranks 0 and 4
of a machine with two sockets of four meet at the level of the machine and not of a socket. What a
level cannot know is refused: a host that has more devices than the cluster's, half-filled hosts
beside each other, links within a host where a cluster has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar, final

import numpy as np
from scipy.optimize import isotonic_regression

from spbench.errors import Failure
from spbench.projection.costmodel.constants import (
    CollectiveRate,
    Constant,
    Curve,
    Level,
    constant,
    curve,
    rounded,
    transfer_s,
)
from spbench.projection.costmodel.hardware import NETWORK, Cluster
from spbench.projection.costmodel.message_cost import crossing
from spbench.projection.microbench.nccl_logs import Run
from spbench.text import counted, listed, short


@final
@dataclass(frozen=True, kw_only=True)
class PlacedRun:
    """A run, and the level that joins its ranks."""

    run: Run
    group: tuple[int, ...]
    """The ranks' positions in the cluster."""
    at: int
    """The level's number; that behind the last is a network around all of them."""
    block: int
    """Ranks that the level before joins."""

    @property
    def shares(self) -> tuple[float, float]:
        """Parts of what ranks send that leave a block: of the busiest rank, of all of a block."""
        return self.crossing(self.block)

    def crossing(self, block: int) -> tuple[float, float]:
        """Such parts for blocks of another size."""
        return crossing((self.group,), self.run.op, block)


def placed(run: Run, cluster: Cluster) -> PlacedRun:
    """The run at its level. Raises Failure where no level can know what it timed."""
    group = _positions(run, cluster)
    block = 1
    for at, level in enumerate(cluster.levels):
        if level.ranks is None or len({rank // level.ranks for rank in group}) == 1:
            _check_within(run, cluster, level)
            return PlacedRun(run=run, group=group, at=at, block=block)
        block = level.ranks
    return PlacedRun(run=run, group=group, at=len(cluster.levels), block=block)


def _positions(run: Run, cluster: Cluster) -> tuple[int, ...]:
    """Where the ranks are, in the order in which they send to each other. Raises Failure for hosts
    that are not the cluster's."""
    of_host = cluster.ranks_of_host
    hosts = run.hosts
    on_host = [sum(seat.host == host for seat in run.seats) for host in hosts]
    has = f"a host of {cluster.name} has {counted(of_host, 'rank')}"
    for host, ranks in zip(hosts, on_host, strict=True):
        if ranks > of_host:
            raise Failure(
                f"{run.place}: {counted(ranks, 'rank')} on host {host!r}, and {has}: are these "
                f"several hosts of one name, or is --like another kind of machine?"
            )
    if len(hosts) > 1 and set(on_host) != {of_host}:
        uneven = ", ".join(map(str, on_host))
        raise Failure(
            f"{run.place}: {uneven} ranks on {counted(len(hosts), 'host')}, and {has}: what fewer "
            f"send between hosts does not tell the rate of all; start {of_host} on each"
        )
    if len(hosts) > 1 and [seat.host for seat in run.seats] != [
        host for host in hosts for _ in range(of_host)
    ]:
        raise Failure(
            f"{run.place}: its ranks are dealt out over hosts in turn, and spbench's are not; "
            f"start those of a host one after the other (mpirun --map-by ppr:{of_host}:node, "
            f"srun -m block)"
        )
    if len(hosts) > 1:
        return tuple(range(run.ranks))
    beyond = [seat.device for seat in run.seats if seat.device >= of_host]
    if beyond:
        raise Failure(f"{run.place}: a rank on device {beyond[0]}, and {has}, from 0 on")
    return tuple(seat.device for seat in run.seats)


def _check_within(run: Run, cluster: Cluster, level: Level) -> None:
    """Raises Failure for links within a host where the cluster's are those between hosts."""
    is_within = len(run.hosts) == 1
    if is_within and NETWORK in (cluster.link, level.name):
        raise Failure(
            f"{run.place}: {counted(run.ranks, 'rank')} on one host, and level {level.name!r} of "
            f"{cluster.name} joins hosts: it has no links within one to replace"
        )


# Latency and rates of one operation at one level, by runs of nccl-tests.
#
#     seconds = latency + hop x (ranks - 2) + sent x share / rate(sent)
#
# The line through the two smallest messages, drawn on to none, gives the latency, if that is at
# least half of what the smaller takes. Else no message is small enough to tell it: the level's own
# is kept, and the rates are those of what is left. Beyond the sizes that were timed, rates go on as
# the level's own curve does, from where the timed ones end.

SOURCE = "nccl-tests"
"""The key of a cluster's sources that constants from logs name."""
SIZES = "run each test with -b 1K -e 1G -f 4"
LATENCY_PART = 0.5
"""Part of the smallest message's time that is its latency, at least, where that is told."""
LEAST_PART = 0.05
"""Part of the latency that a message takes beyond it, at least: less is not told from none."""
LEAST_S = 1e-7
"""A time that is shorter is not told from none."""
AGREE = 1.5
"""Factor between rates of runs that one curve holds; its spread is as wide as they differ."""


Known = TypeVar("Known", Constant, Curve)


@final
@dataclass(frozen=True, kw_only=True)
class Fit:
    """What runs tell of one operation at one level."""

    runs: Sequence[PlacedRun]
    rate: CollectiveRate
    is_latency_told: bool
    """Whether the runs tell the latency; else it is what the level had."""
    beyond: Sequence[tuple[PlacedRun, float, float]]
    """Messages that take as long again as their latency: the run, bytes that a rank sends, and
    seconds beyond the latency."""


def fitted(runs: Sequence[PlacedRun], old: CollectiveRate | None) -> Fit:
    """The operation by its runs; ``old``: what the level had, None for a new level. Raises Failure
    where they tell no rate, or rates that are not one."""
    smooth = [_smooth(each) for each in runs]
    told = {
        each.run.ranks: latency_s
        for each, points in zip(runs, smooth, strict=True)
        if (latency_s := _latency_s(points)) is not None
    }
    least_s = min(seconds for points in smooth for _, seconds in points[:1])
    latency, hop = latency_of(told, old) if told else _kept(runs, old, least_s)
    hop_us = hop.value if hop else 0.0
    pairs = [
        (each, points, (latency.value + hop_us * (each.run.ranks - 2)) / 1e6)
        for each, points in zip(runs, smooth, strict=True)
    ]
    curves = [_rates(*pair) for pair in pairs]
    apart = _how_far_apart(runs, curves)
    whole = curve([point for points in curves for point in points])
    whole = whole.model_copy(update={"spread": max(whole.factor, rounded(apart))})
    rates = sourced(whole if old is None else extended(whole, old.gb_per_s))
    made = CollectiveRate(latency_us=latency, hop_us=hop, gb_per_s=rates)
    if old is not None:  # no log tells what kernels hide of it
        made = made.model_copy(update={"hidden": old.hidden, "hides": old.hides})
    return Fit(
        runs=runs,
        rate=made,
        is_latency_told=bool(told),
        beyond=[
            (each, sent, seconds - latency_s)
            for each, points, latency_s in pairs
            for sent, seconds in points
            if seconds >= 2 * latency_s
        ],
    )


def _smooth(placed: PlacedRun) -> list[tuple[float, float]]:
    """Bytes and seconds by rising size. A message that took longer than a larger one shares its
    time, as chance moved both: their mean."""
    sizes, taken = zip(*sorted(placed.run.points), strict=True)
    return list(zip(sizes, map(float, isotonic_regression(taken).x), strict=True))


def _latency_s(points: Sequence[tuple[float, float]]) -> float | None:
    """Seconds of a message of no bytes; None where no message is small enough to tell."""
    size, seconds = points[0]
    larger = next(((sent, took) for sent, took in points if sent >= 2 * size), None)
    if larger is None:
        return None
    sent, took = larger
    at_none = seconds - size * (took - seconds) / (sent - size)
    return at_none if at_none >= LATENCY_PART * seconds else None


def latency_of(
    told: Mapping[int, float], old: CollectiveRate | None
) -> tuple[Constant, Constant | None]:
    """The latency of two ranks, and what each further one adds: by runs on several numbers of
    ranks, else what the level had, as far as the latency has room for it."""
    ranks, seconds = [*told], [*told.values()]
    hop = None if old is None else old.hop_us
    if len(told) > 1:
        each_s = float(np.polyfit(ranks, seconds, 1)[0])
        hop = sourced(constant(1e6 * each_s)) if each_s > LEAST_S else None
    hops_s = [(n - 2) * (hop.value / 1e6 if hop else 0.0) for n in ranks]
    if min(np.subtract(seconds, hops_s)) < LEAST_S:
        hop, hops_s = None, [0.0] * len(ranks)
    latency_s = float(np.mean(np.subtract(seconds, hops_s)))
    return sourced(constant(1e6 * latency_s)), hop


def _kept(
    runs: Sequence[PlacedRun], old: CollectiveRate | None, least_s: float
) -> tuple[Constant, Constant | None]:
    """The level's own latency, where no run tells one. Raises Failure for a new level, which has
    none, and where a message took less than it."""
    place = runs[0].run.place
    if old is None:
        raise Failure(
            f"{place}: its smallest message takes {1e6 * least_s:,.0f} us, most of which is not "
            f"latency, and a new level has no other; {SIZES}"
        )
    kept_s = max(old.latency_s(each.run.ranks, each.run.ranks) for each in runs)
    if kept_s > least_s:
        raise Failure(
            f"{place}: its smallest message takes {1e6 * least_s:,.0f} us, less than the latency "
            f"of {1e6 * kept_s:,.0f} us that the cluster has, and it is too large to tell "
            f"another; {SIZES}"
        )
    return old.latency_us, old.hop_us


def _rates(
    placed: PlacedRun, points: Sequence[tuple[float, float]], latency_s: float
) -> list[tuple[float, float]]:
    """MB that a rank sends, and GB/s of what crosses the level. Raises Failure where even the
    largest message is mostly latency."""
    sent, seconds = points[-1]
    if seconds < 2 * latency_s:
        raise Failure(
            f"{placed.run.place}: its largest message, {short(sent / 1e6)} MB from a rank, takes "
            f"{1e6 * seconds:,.0f} us, most of it latency: that tells no rate; {SIZES}"
        )
    share, _ = placed.shares
    least_s = LEAST_PART * latency_s
    return [(n / 1e6, n * share / max(s - latency_s, least_s) / 1e9) for n, s in points]


def _how_far_apart(
    runs: Sequence[PlacedRun], curves: Sequence[Sequence[tuple[float, float]]]
) -> float:
    """The factor between the highest and the lowest rate of one operation, at the largest message
    that all runs have. Raises Failure where no single rate stands for them."""
    common = min(points[-1][0] for points in curves)
    rates = [curve(points)(common) for points in curves]
    if max(rates) <= AGREE * min(rates):
        return max(rates) / min(rates)
    said = [
        f"{short(each.run.bus_gb_per_s)} GB/s on {each.run.ranks} ranks ({each.run.place})"
        for each in runs
    ]
    raise Failure(
        f"{listed(said)}: a level has one rate of {runs[0].run.op} and cannot know which; import "
        f"the runs with the settings and the number of ranks that you ask about"
    )


def extended(timed: Curve, old: Curve) -> Curve:
    """The curve with what the old one has beyond its ends, in proportion to where they meet."""
    first, last = timed.at[0], timed.at[-1]
    small, large = timed.values[0] / _rate_at(old, first), timed.values[-1] / _rate_at(old, last)
    below = [(at, rounded(old(at) * small)) for at in old.at if at < first]
    above = [(at, rounded(old(at) * large)) for at in old.at if at > last]
    points = [*below, *zip(timed.at, timed.values, strict=True), *above]
    at, values = zip(*points, strict=True)
    return timed.model_copy(update={"at": at, "values": values})


def _rate_at(curve: Curve, mb: float) -> float:
    """GB/s of a message of this size, as ``CollectiveRate`` times it: between two sizes its time
    is on a line, and its rate is not."""
    return mb / transfer_s(curve, mb) / 1e3


def sourced(made: Known) -> Known:
    """The constant as one of logs."""
    return made.model_copy(update={"source": SOURCE})
