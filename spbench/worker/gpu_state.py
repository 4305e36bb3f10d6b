"""The state of this rank's GPU by NVML, read between blocks: an idle GPU shows another state.

    open, look    timed ▪▪▪ look  silent ▪▪▪ look  timed ▪▪▪ look  silent ▪▪▪ look ...  state

Behind silent blocks only the clock counts: they keep the GPU busier than steps that wait for links,
so its power cap may lower the clock further, and computation takes longer there.
NVML starts and finds the GPU before anything is timed, and is asked off the clock.
"""

from __future__ import annotations

import statistics
from functools import partial
from typing import Any, final

import torch

from spbench.errors import or_none
from spbench.results.conditions import THROTTLED
from spbench.results.nvml import NVLINK, Device, open_nvml, read_nvml

WORST = {"clock_mhz": min, "power_w": max, "temperature_c": max, "processes": max}
"""NVML's answers by name, and how those of several looks become one."""


@final
class Gpu:
    """One GPU, and the looks at it so far.

    What NVML does not answer stays blank. Under MIG that is all but ``gpu``: CUDA gives the
    identity of a slice, which NVML does not know; its answers would be about all slices together.
    """

    def __init__(self, device: torch.device) -> None:
        """Opens NVML and takes the first look, which makes the later ones quick."""
        self._uuid = or_none(lambda: f"GPU-{torch.cuda.get_device_properties(device).uuid}")
        self._nvml = open_nvml()
        handle = or_none(lambda: self._nvml.nvmlDeviceGetHandleByUUID(self._uuid))
        self._gpu = Device(self._nvml, handle) if handle is not None else None
        self.power_limit_w = self._gpu.power_limit_w if self._gpu else None
        # Before the first look the GPU may have been idle: only its processes count.
        self._looks = [{"processes": self._answers().get("processes")}]
        self._silent_looks: list[dict[str, Any]] = []

    def look(self, is_silent: bool = False) -> None:
        """Right after the steps of a block, before the GPU waits for anything."""
        (self._silent_looks if is_silent else self._looks).append(self._answers())

    def state(self) -> dict[str, Any]:
        """The fields of Conditions, the worst of all looks; NVML is closed."""
        if self._nvml is not None:
            or_none(self._nvml.nvmlShutdown)
        state: dict[str, Any] = {"gpu": self._uuid or ""}
        for name, worst in WORST.items():
            if values := self._values(name):
                state[f"gpu_{name}"] = worst(values)
        for name, looks in (("timed", self._looks), ("silent", self._silent_looks)):
            clocks = [mhz for look in looks if (mhz := look.get("clock_mhz")) is not None]
            if clocks:
                state[f"{name}_clock_mhz"] = statistics.median(clocks)
        if every := self._values("throttle_bits"):
            state["gpu_throttle"] = [
                name for bit, name in THROTTLED.items() if any(bits & bit for bits in every)
            ]
        return state

    def _values(self, name: str) -> list[Any]:
        return [look[name] for look in self._looks if look.get(name) is not None]

    def _answers(self) -> dict[str, Any]:
        if self._gpu is None:
            return {}
        return {name: getattr(self._gpu, name) for name in (*WORST, "throttle_bits")}


def nvlink_bytes_per_s(device: torch.device) -> float | None:
    """The nominal rate of the GPU's active NVLinks together, one way; None without NVLink between
    all GPUs of the machine, or where NVML does not tell."""
    nvml = open_nvml()
    if nvml is None:
        return None
    rate = or_none(lambda: _nvlink_bytes_per_s(nvml, device))
    or_none(nvml.nvmlShutdown)
    return rate


def _nvlink_bytes_per_s(nvml: Any, device: torch.device) -> float | None:
    paths = read_nvml(nvml).paths.values()
    uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
    handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
    links = range(nvml.NVML_NVLINK_MAX_LINKS)
    active = sum(or_none(partial(nvml.nvmlDeviceGetNvLinkState, handle, i)) == 1 for i in links)
    (speed,) = nvml.nvmlDeviceGetFieldValues(handle, [nvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON])
    rate = active * int(speed.value.uiVal) * 1e6  # megabytes, whatever its name says
    return rate if rate and speed.nvmlReturn == 0 and set(paths) == {NVLINK} else None
