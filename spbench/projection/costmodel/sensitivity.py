"""A cluster with one constant, or all of one kind, multiplied."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from spbench.projection.costmodel.constants import Constant, Curve, Level, rounded
from spbench.projection.costmodel.hardware import Cluster, Device, OnRanks
from spbench.projection.costmodel.operations import is_computed
from spbench.workload.traffic import Op

BESIDE = 0.8
"""Where products take twice as long, launches and sockets take two to this power: decision 0044."""
LAUNCHES = ("launch_us", "compiled_launch_us", "operation_us")
Part = TypeVar("Part", Cluster, OnRanks)


def scaled(cluster: Cluster, what: str, factor: float) -> Cluster:
    """The cluster with all constants of a kind (rate, latency, compute or launch) multiplied by
    ``factor``, those of fewer ranks too."""
    parts = tuple(_part(part, what, factor) for part in cluster.on_ranks)
    return _part(cluster, what, factor).model_copy(update={"on_ranks": parts})


def with_slower(cluster: Cluster, name: str, factor: float) -> Cluster:
    """The cluster where what one constant bounds takes ``factor`` as long.

    Parameters
    ----------
    cluster
        As so many ranks find it: without ``on_ranks``.
    name
        The constant as it is drawn. Of an attention it stands for all head sizes: a size between
        two that a file has goes by both.
    factor
        Above 1 a rate is lower, or a time longer.

    Raises
    ------
    ValueError
        The constant is not one of the device, of the host or of what a block shares.
    """
    part, _, field = name.rpartition(".")
    if name == "call_us":
        return _multiplied(cluster, factor, field)
    if field == "shared_gb_per_s":
        levels = tuple(
            _multiplied(level, 1 / factor, field) if level.name == part else level
            for level in cluster.levels
        )
        return cluster.model_copy(update={"levels": levels})
    return cluster.model_copy(update={"device": _slower_device(cluster.device, name, factor)})


def _slower_device(device: Device, name: str, factor: float) -> Device:
    """The device where what one of its constants bounds takes ``factor`` as long."""
    part, _, field = name.rpartition(".")
    if part == "device.products":
        rates = {
            dtype: _times(curve, 1 / factor) if dtype == field else curve
            for dtype, curve in device.products.tflops.items()
        }
        products = device.products.model_copy(update={"tflops": rates})
        return device.model_copy(update={"products": products})
    if near := next((table for table in device.attention if table.place == name), None):
        alike = near.kernel, near.is_backward
        tables = tuple(
            _multiplied(table, 1 / factor, "tflops")
            if (table.kernel, table.is_backward) == alike
            else table
            for table in device.attention
        )
        return device.model_copy(update={"attention": tables})
    if field == "memory_gb_per_s":
        return _multiplied(device, 1 / factor, field)
    if field in LAUNCHES:
        return _multiplied(device, factor, field)
    raise ValueError(f"{name!r} is no constant that is scaled by itself")


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
    raise ValueError(f"{what!r} is not rate, latency, compute or launch")


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
