"""A network at another nominal rate than the one that was timed.

What a byte costs is its time on the wire and what the ends need for it. Only the first changes:

    1 / rate = 1 / nominal + rest        rest: sockets, copies, waits, as timed

Where less than the wire's time was seen, a bucket let the beginning of a small message through at
once: the time that this saves stays on a slower wire, and on a faster one the rate changes in
proportion. Latencies stay.
"""

from __future__ import annotations

import re
from typing import Any

from spbench.errors import Failure
from spbench.projection.constants import Constant, Curve
from spbench.projection.hardware import Cluster, Level, find

RATE = re.compile(r"([0-9]*\.?[0-9]+)\s*([kmgt]?)bit(?:/s)?", re.ASCII | re.IGNORECASE)
BITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}


def link_rate(text: str) -> Constant:
    """The nominal rate in GB/s that a user writes as 200Mbit. Raises Failure."""
    parts = RATE.fullmatch(text.strip())
    if parts is None or not float(parts[1]):
        raise Failure(f"--link-rate {text} is not a rate; write 200Mbit, 2.5Gbit or 400Gbit")
    value = float(parts[1]) * BITS[parts[2].lower()] / 8e9
    return Constant(value=value, source=f"--link-rate {text}", kind="spec", spread=1.02)


def cluster_at(name_or_file: str, rate: str | None) -> Cluster:
    """The cluster of a name or file, its outermost links at another rate where one is given."""
    cluster = find(name_or_file)
    return cluster if rate is None else relinked(cluster, link_rate(rate))


def relinked(cluster: Cluster, rate: Constant) -> Cluster:
    """The cluster with its outermost links at another nominal rate. Raises Failure where its file
    does not say at which rate they were timed."""
    parts = tuple(
        part.model_copy(update={"levels": _relinked(cluster.name, part.levels, rate)})
        for part in cluster.on_ranks
    )
    levels = _relinked(cluster.name, cluster.levels, rate)
    return cluster.model_copy(update={"levels": levels, "on_ranks": parts})


def _relinked(name: str, levels: tuple[Level, ...], rate: Constant) -> tuple[Level, ...]:
    if not levels:
        return levels
    *inner, level = levels
    old = level.nominal_gb_per_s
    if old is None:
        raise Failure(
            f"--link-rate: {name} does not say at which rate its level {level.name!r} was timed; "
            f"add nominal_gb_per_s to it, or calibrate with --link-rate"
        )
    update: dict[str, Any] = {"nominal_gb_per_s": rate}
    update["collectives"] = {
        op: each.model_copy(update={"gb_per_s": _faster(each.gb_per_s, old.value, rate.value)})
        for op, each in level.collectives.items()
    }
    if (shared := level.shared_gb_per_s) is not None:
        value = shared.value * rate.value / old.value
        update["shared_gb_per_s"] = shared.model_copy(update={"value": value})
    return (*inner, level.model_copy(update=update))


def _faster(curve: Curve, old: float, new: float) -> Curve:
    rates = (
        timed * new / old if timed >= old and new > old else 1 / (1 / new + 1 / timed - 1 / old)
        for timed in curve.values
    )
    return curve.model_copy(update={"values": tuple(rates)})
