"""What a published value says in seconds, and how many steps it covers."""

from __future__ import annotations

import math
import re
from typing import Any

from spbench.errors import Failure
from spbench.projection.published import Point, PublishedCase, PublishedCell


def published_seconds(
    point: Point, facts: dict[str, Any], cell: PublishedCell, case: PublishedCase
) -> float:
    """What was measured, in seconds; of a ratio, in times of the reference. Raises Failure."""
    value, metric = case.value, point.metric
    match metric.name:
        case "s":
            return value
        case "ms":
            return value / 1e3
        case "us":
            return value / 1e6
        case "iterations_per_s":
            return 1 / value
        case "ratio":
            return value if metric.better == "lower" else 1 / value
        case "tflops_per_gpu":
            return _product(metric.flops, facts) / (value * 1e12 * cell.ranks)
    samples = facts["batch"] * case.mesh.get("dp", 1)
    if metric.name == "samples_per_s":
        return samples / value
    axes = facts.get("axes") or {}
    return samples * math.prod(axes.values()) / value


def _product(formula: str, facts: dict[str, Any]) -> float:
    """The value of a product such as '4 * seq^2 * heads * head_dim / 2'. Raises Failure."""
    result = 1.0
    for sign, name, power in re.findall(r"([*/]?)\s*([\w.]+)(?:\^(\d))?", formula):
        number = facts.get(name, name)
        try:
            factor = float(number) ** int(power or 1)
        except ValueError:
            raise Failure(f"operations {formula!r}: {name!r} is not known") from None
        result = result / factor if sign == "/" else result * factor
    if not formula:
        raise Failure("the operations that the rate counts are not known")
    return result


def steps_of(point: Point, facts: dict[str, Any]) -> int:
    if point.metric.per != "generation":
        return 1
    if facts.get("steps") is None:
        raise Failure("the number of steps is not known")
    return int(facts["steps"])
