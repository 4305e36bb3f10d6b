"""Published names of hardware and models, and published values, in our terms: clusters, seconds."""

import math
import re
from typing import Any

from spbench.errors import Failure
from spbench.projection.published import Hardware, Point, PublishedCase, PublishedCell
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
    point: Point, facts: dict[str, Any], cell: PublishedCell, case: PublishedCase
) -> float:
    """What was measured, in seconds; of a ratio, in times of the reference. Raises Failure."""
    value, metric = case.value, point.metric
    match metric.name:
        case "s" | "ms" | "us":
            return value / PER_SECOND[metric.name]
        case "iterations_per_s":
            return 1 / value
        case "ratio":
            return value if metric.better == "lower" else 1 / value
        case "tflops_per_gpu":
            return _product(metric.flops, facts) / (value * 1e12 * cell.ranks)
    samples = facts["batch"] * case.mesh.get("dp", 1)
    if metric.name == "samples_per_s":
        return samples / value
    return samples * math.prod((facts.get("axes") or {}).values()) / value


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
