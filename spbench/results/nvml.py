"""What NVML says of the driver and its GPUs, each question for itself: any of them may fail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from typing import Any

from spbench.results.conditions import POWER_CAP, THROTTLED
from spbench.results.gpu_device import Device
from spbench.results.safe_query import told

NVLINK = "NVLink"
BETWEEN_SOCKETS = "between sockets (SYS)"
PATHS = {
    0: "on one board (PSB)",
    10: "one PCIe switch (PIX)",
    20: "several PCIe switches (PXB)",
    30: "a PCIe host bridge (PHB)",
    40: "host bridges of one socket (NODE)",
    50: BETWEEN_SOCKETS,
}
"""Where the ways from two GPUs to the processor meet, with nvidia-smi's word for it."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One GPU. None: not to be known here."""

    index: int
    name: str = ""
    uuid: str = ""
    lost: str = ""
    """Why it does not answer at all."""
    used_bytes: int | None = None
    """Without what the driver keeps for itself."""
    busy_percent: float | None = None
    processes: int | None = None
    throttled: tuple[str, ...] = ()
    """A power cap, which is no fault, left out."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Of the driver, or an error in place of it."""

    error: str = ""
    code: int = 0
    driver: str = ""
    cuda: tuple[int, int] | None = None
    """The version that the driver was made for."""
    gpus: Sequence[Seen] = ()
    paths: Mapping[tuple[int, int], str] = field(default_factory=dict)
    """The shortest way between two GPUs, by their indices in ascending order."""


def ask(nvml: Any) -> Answer:
    """``nvml``: the module pynvml. Raises nothing."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return Answer(error=str(error), code=error.value)
    try:
        count = told(nvml.nvmlDeviceGetCount) or 0
        cuda = told(nvml.nvmlSystemGetCudaDriverVersion_v2)
        return Answer(
            driver=told(nvml.nvmlSystemGetDriverVersion) or "",
            cuda=None if cuda is None else (cuda // 1000, cuda % 1000 // 10),
            gpus=[_gpu(nvml, index) for index in range(count)],
            paths=_paths(nvml, count),
        )
    finally:
        told(nvml.nvmlShutdown)


def _gpu(nvml: Any, index: int) -> Seen:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError as error:
        return Seen(index=index, lost=str(error))
    gpu = Device(nvml, handle)
    bits = gpu.throttle_bits or 0
    return Seen(
        index=index,
        name=gpu.name or "",
        uuid=gpu.uuid or "",
        used_bytes=gpu.used_bytes,
        busy_percent=gpu.busy_percent,
        processes=gpu.processes,
        throttled=tuple(
            name for bit, name in THROTTLED.items() if bits & bit and name != POWER_CAP
        ),
    )


def _paths(nvml: Any, count: int) -> dict[tuple[int, int], str]:
    """Of each pair that NVML tells of."""
    pairs = {pair: told(partial(_path, nvml, *pair)) for pair in combinations(range(count), 2)}
    return {pair: path for pair, path in pairs.items() if path}


def _path(nvml: Any, *pair: int) -> str:
    two = [nvml.nvmlDeviceGetHandleByIndex(index) for index in pair]
    linked = told(partial(nvml.nvmlDeviceGetP2PStatus, *two, nvml.NVML_P2P_CAPS_INDEX_NVLINK))
    if linked == nvml.NVML_P2P_STATUS_OK:
        return NVLINK
    return PATHS.get(nvml.nvmlDeviceGetTopologyCommonAncestor(*two), "")


def visible(gpus: Sequence[Seen], shown: str | None) -> list[Seen]:
    """Those that CUDA_VISIBLE_DEVICES leaves, in its order; it ends at the first that is none."""
    if shown is None:
        return list(gpus)
    found: list[Seen] = []
    for name in map(str.strip, shown.split(",")):
        if name.startswith("MIG-"):
            found.append(Seen(index=-1, name="MIG slice"))  # NVML tells of whole GPUs
            continue
        named = [
            one
            for one in gpus
            if name == str(one.index) or (name.startswith("GPU-") and one.uuid.startswith(name))
        ]
        if not named:
            break
        found.append(named[0])
    return found
