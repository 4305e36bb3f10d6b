"""Published names of hardware and models, and ours."""

from __future__ import annotations

import re

from spbench.errors import Failure
from spbench.projection.published import Hardware
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
    hint = did_you_mean(plain, names())
    raise Failure(f"model {name!r} is not in the catalogue. {hint}".strip())
