"""A cluster with one kind of constant multiplied: what a recommendation hinges on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spbench.projection.hardware import Cluster, CollectiveRate, Level
from spbench.projection.timed_kernels import is_computed

WHATS: Mapping[str, str] = {
    "rate": "the links' rate",
    "latency": "the links' latency",
    "compute": "the rate of products and attention",
    "launch": "the host's time of a launch",
}
"""Kinds of constants, and their names in a sentence."""


def scaled(cluster: Cluster, what: str, factor: float) -> Cluster:
    """The cluster with all constants of a kind multiplied by ``factor``."""
    match what:
        case "rate" | "latency":
            levels = tuple(_level(level, what, factor) for level in cluster.levels)
            return cluster.model_copy(update={"levels": levels})
        case "compute":
            return cluster.model_copy(update={"device": _faster(cluster, factor)})
        case "launch":
            device = cluster.device
            names = ("launch_us", "compiled_launch_us")
            fields = {name: _times(getattr(device, name), factor) for name in names}
            update = {
                "device": device.model_copy(update=fields),
                "call_us": _times(cluster.call_us, factor),
            }
            return cluster.model_copy(update=update)
    raise ValueError(f"{what!r} is not one of {', '.join(WHATS)}")


def _level(level: Level, what: str, factor: float) -> Level:
    rates = {op: _collective(each, what, factor) for op, each in level.collectives.items()}
    fields: dict[str, Any] = {"collectives": rates}
    if what == "rate" and level.shared_gb_per_s is not None:
        fields["shared_gb_per_s"] = _times(level.shared_gb_per_s, factor)
    return level.model_copy(update=fields)


def _collective(each: CollectiveRate, what: str, factor: float) -> CollectiveRate:
    if what == "rate":
        return each.model_copy(update={"gb_per_s": _times(each.gb_per_s, factor)})
    hop = None if each.hop_us is None else _times(each.hop_us, factor)
    return each.model_copy(update={"latency_us": _times(each.latency_us, factor), "hop_us": hop})


def _faster(cluster: Cluster, factor: float) -> Any:
    device = cluster.device
    rates = {dtype: _times(each, factor) for dtype, each in device.products.tflops.items()}
    products = device.products.model_copy(update={"tflops": rates})
    attention = tuple(
        each.model_copy(update={"tflops": _times(each.tflops, factor)}) for each in device.attention
    )
    timed = {
        dtype: {name: us / factor if is_computed(name) else us for name, us in known.items()}
        for dtype, known in device.timed_us.items()
    }
    fields = {"products": products, "attention": attention, "timed_us": timed}
    return device.model_copy(update=fields)


def _times(constant: Any, factor: float) -> Any:
    """A constant or a curve, multiplied."""
    if hasattr(constant, "values"):
        return constant.model_copy(update={"values": tuple(factor * x for x in constant.values)})
    return constant.model_copy(update={"value": factor * constant.value})
