"""A cluster with other constants: one kind multiplied, or its network at another nominal rate.

The first is what a recommendation hinges on. Of the second, what a byte costs is its time on the
wire and what the ends need for it, and only the wire's time changes:

    1 / rate = 1 / (0.9 nominal) + rest        rest: sockets, copies, waits, as timed

Headers, acknowledgements and senders that meet take up to a tenth of a wire: a rate within that
changes in proportion. Where less than the wire's time was seen, a bucket let the beginning of a
message through at once: what it holds of the wire's time, it holds of another wire's, too, but two
packets at least, and where that is all, a message goes at the wire's rate or at the highest at
which any operation was timed, as the same sockets carry all. Latencies stay.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np

from spbench.errors import Failure
from spbench.projection.costmodel.constants import Constant, Curve, Level, rounded
from spbench.projection.costmodel.hardware import Cluster, Device, OnRanks, find
from spbench.projection.costmodel.operations import is_computed
from spbench.workload.traffic import Op

WHATS: Mapping[str, str] = {
    "rate": "the links' rate",
    "latency": "the links' latency",
    "compute": "the rate of products and attention",
    "launch": "the host's time of a launch",
}
"""Kinds of constants, and their names in a sentence."""
BESIDE = 0.8
"""Where products take twice as long, launches and sockets take two to this power: decision 0044."""
LAUNCHES = ("launch_us", "compiled_launch_us", "operation_us")
Part = TypeVar("Part", Cluster, OnRanks)


def scaled(cluster: Cluster, what: str, factor: float) -> Cluster:
    """The cluster with all constants of a kind multiplied by ``factor``, those of fewer ranks
    too."""
    parts = tuple(_part(part, what, factor) for part in cluster.on_ranks)
    return _part(cluster, what, factor).model_copy(update={"on_ranks": parts})


def slowed(cluster: Cluster, factor: float) -> Cluster:
    """The cluster with processors on which products and attention take ``factor`` as long. Launches
    take longer, too, and so does what ranks send each other through a machine's memory."""
    beside = factor**BESIDE
    slow = scaled(scaled(cluster, "compute", 1 / factor), "launch", beside)
    if cluster.link != "memory":
        return slow
    return scaled(scaled(slow, "rate", 1 / beside), "latency", beside)


def in_company(
    part: OnRanks, waits: float, hides: float, hops: float, latencies: Mapping[Op, float]
) -> OnRanks:
    """What so many ranks have, where computing and the host take ``waits`` times as long, as all
    wait for the slowest of them, and a kernel hides as much of a message as fits into the part
    ``hides`` of its time. Each operation's latency is multiplied. Of what ranks beyond two add to
    it, a smaller group saves the part ``hops``; the rest it pays, too, since all share cores."""
    device = _multiplied(part.device, waits, "in_step", "operation_us")
    alike = {"hidden": 1.0, "hides": rounded(hides), "shared": round(1 - hops, 4)}
    levels = []
    for level in part.levels:
        rates = {
            op: _multiplied(rate, latencies[op], "latency_us", "hop_us").model_copy(update=alike)
            for op, rate in level.collectives.items()
        }
        levels.append(level.model_copy(update={"collectives": rates}))
    update = {"device": device, "levels": tuple(levels)}
    return _multiplied(part, waits, "call_us").model_copy(update=update)


def _part(part: Part, what: str, factor: float) -> Part:
    """What so many ranks have, with the constants of a kind multiplied."""
    match what:
        case "rate" | "latency":
            levels = tuple(_level(level, what, factor) for level in part.levels)
            return part.model_copy(update={"levels": levels})
        case "compute":
            return part.model_copy(update={"device": _faster(part.device, factor)})
        case "launch":
            device = _multiplied(part.device, factor, *LAUNCHES)
            return _multiplied(part, factor, "call_us").model_copy(update={"device": device})
    raise ValueError(f"{what!r} is not one of {', '.join(WHATS)}")


def _level(level: Level, what: str, factor: float) -> Level:
    is_rate = what == "rate"
    names = ("gb_per_s",) if is_rate else ("latency_us", "hop_us")
    rates = {op: _multiplied(each, factor, *names) for op, each in level.collectives.items()}
    own = _multiplied(level, factor, "shared_gb_per_s") if is_rate else level
    return own.model_copy(update={"collectives": rates})


def _faster(device: Device, factor: float) -> Device:
    rates = {dtype: _times(each, factor) for dtype, each in device.products.tflops.items()}
    products = device.products.model_copy(update={"tflops": rates})
    attention = tuple(_multiplied(each, factor, "tflops") for each in device.attention)
    timed = {
        dtype: {name: us / factor if is_computed(name) else us for name, us in known.items()}
        for dtype, known in device.timed_us.items()
    }
    fields = {"products": products, "attention": attention, "timed_us": timed}
    return device.model_copy(update=fields)


def _multiplied(part: Any, factor: float, *names: str) -> Any:
    """A part of a cluster with these of its constants multiplied, as far as it has them."""
    known = {name: getattr(part, name) for name in names}
    update = {name: x if x is None else _times(x, factor) for name, x in known.items()}
    return part.model_copy(update=update)


def _times(constant: Constant | Curve, factor: float) -> Constant | Curve:
    if isinstance(constant, Curve):
        return constant.model_copy(update={"values": tuple(factor * x for x in constant.values)})
    return constant.model_copy(update={"value": factor * constant.value})


WIRE = 0.9
"""Part of a nominal rate from which the wire limits: TCP in frames of 1,500 bytes gets 0.95."""
PACKETS_MB = 2 * 0.009
"""Two packets of 9,000 bytes: the token bucket of a slower link holds no less."""
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
    """The cluster with its outermost links at another nominal rate, which its name tells. Raises
    Failure where its file does not say at which rate they were timed."""
    parts = tuple(
        part.model_copy(update={"levels": _relinked(cluster.name, part.levels, rate)})
        for part in cluster.on_ranks
    )
    levels = _relinked(cluster.name, cluster.levels, rate)
    name = f"{cluster.name} at {_bits(rate.value)}"
    # Both are one machine, whose constants are off by the same.
    known = {"name": name, "drawn_as": cluster.drawn_as or cluster.name}
    return cluster.model_copy(update=known | {"levels": levels, "on_ranks": parts})


def _bits(gb_per_s: float) -> str:
    """A rate as users write it: 200Mbit. One rate has one text, however it was written."""
    bits = float(f"{8e9 * gb_per_s:.6g}")
    unit = max(BITS, key=lambda unit: BITS[unit] if BITS[unit] <= bits else 0.0)
    return f"{bits / BITS[unit]:g}{unit.upper() if unit != 'k' else unit}bit"


def _relinked(name: str, levels: tuple[Level, ...], rate: Constant) -> tuple[Level, ...]:
    if not levels:
        return levels
    *inner, level = levels
    old = level.nominal_gb_per_s
    if old is None:
        raise Failure(
            f"--link-rate: {name} does not say at which rate its level {level.name!r} was timed; "
            f"add nominal_gb_per_s to it, or calibrate several nodes with --link-rate"
        )
    update: dict[str, Any] = {"nominal_gb_per_s": rate}
    highest = max(rate.value, *(max(each.gb_per_s.values) for each in level.collectives.values()))
    rates = old.value, rate.value, highest
    update["collectives"] = {
        op: each.model_copy(update={"gb_per_s": _rewired(each.gb_per_s, *rates)})
        for op, each in level.collectives.items()
    }
    if (shared := level.shared_gb_per_s) is not None:
        value = shared.value * rate.value / old.value
        update["shared_gb_per_s"] = shared.model_copy(update={"value": value})
    return (*inner, level.model_copy(update=update))


def _rewired(curve: Curve, old: float, new: float, highest: float) -> Curve:
    sizes = np.array(curve.at)
    timed, wire = sizes / curve.values, sizes / old
    bucket = max((wire - timed)[timed < WIRE * wire], default=0.0)
    held = max(bucket, PACKETS_MB / new) if bucket and new < old else bucket
    on_wire = np.minimum(timed + bucket, wire / WIRE)
    rest = timed - np.maximum(on_wire - bucket, 0.0)
    seconds = np.maximum(rest + np.maximum(on_wire * old / new - held, 0.0), sizes / highest)
    return curve.model_copy(update={"values": (*map(float, sizes / seconds),)})
