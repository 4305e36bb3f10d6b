"""Published names of hardware and models, and published values, in our terms: clusters, seconds."""

import math
import re
from collections.abc import Mapping
from typing import Any

from published_points import Hardware, Point, PublishedCase, PublishedCell

from spbench.errors import Failure
from spbench.text import did_you_mean
from spbench.workload.config_names import names

CLUSTERS = (
    (r"GB200", ("nvlink", "nvl72"), "nvl72-gb200"),
    (r"B200", ("nvlink",), "hgx-b200"),
    (r"H200", ("nvlink",), "hgx-h200"),
    (r"H100", ("nvlink",), "hgx-h100"),
    (r"H800", ("nvlink",), "h800"),
    (r"H20(?!\d)", ("nvlink",), "h20"),
    (r"A100", ("nvlink",), "dgx-a100"),
    (r"A800", ("nvlink",), "a800"),
    (r"A[18]00", ("pcie",), "a100-pcie"),
    (r"L20(?!\d)", ("pcie",), "l20-pcie"),
    (r"L40(?!S)", ("pcie",), "l40-pcie"),
    (r"4090", ("pcie",), "4090-pcie"),
)
"""GPU and link of a point, and the cluster that describes them; the first that fits counts."""
MODELS = {
    "flux.1-dev / schnell": "flux.1-dev",
    "llama-3-8b": "llama3-8b",
    "llama-3-70b": "llama3-70b",
    "ltx-2 / 2.3": "ltx-2",
    "bagel-7b-mot": "bagel",
    "z-image-turbo": "z-image",
    "step-video-t2v": "step-video",
    "open-sora-2.0": "open-sora-2",
    "hunyuanimage-3.0": "hunyuanimage-3",
}
"""Names of models in the published points that differ from the catalogue's."""
PER_SECOND = {"s": 1.0, "ms": 1e3, "us": 1e6}

MOST = 2.0**53
"""Beyond it neighbouring whole numbers are no longer apart as floats."""


def number_of(facts: Mapping[str, Any], name: str) -> int | float:
    """A fact that is a number above 0. Raises Failure where a file gives none, or another value."""
    value = facts.get(name)
    if value is None:
        raise Failure(f"{name}: not known")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < MOST:
        raise Failure(f"{name}: {value!r} is not a number above 0")
    return value


def count_of(facts: Mapping[str, Any], name: str) -> int:
    """A fact that is a whole number from 1 on. Raises Failure otherwise."""
    value = number_of(facts, name)
    if not isinstance(value, int):
        raise Failure(f"{name}: {value!r} is not a whole number")
    return value


def axes_of(facts: Mapping[str, Any]) -> dict[str, int]:
    """The lengths of all axes. Raises Failure where a file gives none, or not all."""
    axes = facts.get("axes")
    if axes is None:
        raise Failure("the axes are not known")
    if not isinstance(axes, Mapping):
        raise Failure(f"axes: {axes!r} are not lengths by name, as {{time: 16, space: 1024}}")
    return {str(axis): count_of(axes, axis) for axis in axes}


def cluster_of(hardware: Hardware) -> str:
    """The name of the cluster that describes this hardware. Raises Failure."""
    gpu, link = hardware.gpu, hardware.link
    for pattern, links, name in CLUSTERS:
        if re.search(pattern, gpu) and link in links:
            return name
    raise Failure(f"no cluster file describes {gpu} on link {link!r}")


def model_of(name: str) -> str:
    """The catalogue's name of a model, written as in 'wan-2.1-14b / wan-2.2-t2v-a14b'."""
    plain = re.sub(r"\s*\([^)]*\)", "", name).strip()
    for each in (MODELS.get(plain, ""), plain, plain.split(" / ")[0]):
        if each in names():
            return each
    raise Failure(f"model {name!r} is not in the catalogue. {did_you_mean(plain, names())}".strip())


def published_seconds(
    point: Point, facts: dict[str, Any], cell: PublishedCell, case: PublishedCase, value: float
) -> float:
    """A value that was measured of a case, in seconds; of a ratio, in times of the reference.
    Raises Failure."""
    metric = point.metric
    match metric.name:
        case "s" | "ms" | "us":
            return value / PER_SECOND[metric.name]
        case "iterations_per_s":
            return 1 / value
        case "ratio":
            return value if metric.better == "lower" else 1 / value
        case "tflops_per_gpu":
            return _product(metric.flops, facts) / (value * 1e12 * cell.ranks)
    samples = count_of(facts, "batch") * case.mesh.get("dp", 1)
    if metric.name == "samples_per_s":
        return samples / value
    return samples * math.prod(axes_of(facts).values()) / value


def _product(formula: str, facts: dict[str, Any]) -> float:
    """The value of a product such as '4 * seq^2 * heads * head_dim / 2'. Raises Failure."""
    result = 1.0
    for sign, name, power in re.findall(r"([*/]?)\s*([\w.]+)(?:\^(\d))?", formula):
        if name in facts:
            known = number_of(facts, name)
        else:
            try:
                known = float(name)
            except ValueError:
                raise Failure(f"operations {formula!r}: {name!r} is not known") from None
        factor = known ** int(power or 1)
        result = result / factor if sign == "/" else result * factor
    if not formula:
        raise Failure("the operations that the rate counts are not known")
    return result


def steps_of(point: Point, facts: dict[str, Any]) -> int:
    if point.metric.per != "generation":
        return 1
    return count_of(facts, "steps")
