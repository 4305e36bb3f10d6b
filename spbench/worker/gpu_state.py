"""The state of this rank's GPU by NVML, read between blocks: an idle GPU shows another state.

    open, look    timed ▪▪▪ look  silent ▪▪▪  timed ▪▪▪ look  silent ▪▪▪ ...  state

NVML starts and finds the GPU before anything is timed, and is asked off the clock.
"""

from __future__ import annotations

from typing import Any, final

import torch

from spbench.results.conditions import THROTTLED
from spbench.results.gpu_device import Device, open_nvml
from spbench.results.safe_query import told

WORST = {"gpu_clock_mhz": min, "gpu_power_w": max, "gpu_temperature_c": max, "gpu_processes": max}
"""How the values of several looks become one."""
OF_A_LOAD = {"gpu_clock_mhz", "gpu_power_w", "gpu_temperature_c", "bits"}
"""Fields left out of the first look, before which the GPU may have been idle."""


@final
class Gpu:
    """One GPU, and the looks at it so far.

    What does not answer is blank. Under MIG all but ``gpu`` is so: the identity that CUDA tells is
    that of a slice, by which NVML knows no GPU; what it could tell is of all the slices.
    """

    def __init__(self, device: torch.device) -> None:
        """Opens NVML and takes the first look, which makes the later ones quick."""
        self._uuid = told(lambda: f"GPU-{torch.cuda.get_device_properties(device).uuid}")
        self._nvml = open_nvml()
        handle = told(lambda: self._nvml.nvmlDeviceGetHandleByUUID(self._uuid))
        self._gpu = Device(self._nvml, handle) if handle is not None else None
        first = self._answers()
        self.power_limit_w = self._gpu.power_limit_w if self._gpu else None
        self._looks = [{name: first[name] for name in first.keys() - OF_A_LOAD}]

    def look(self) -> None:
        """Right after timed steps, before the GPU waits for anything."""
        self._looks.append(self._answers())

    def state(self) -> dict[str, Any]:
        """The fields of Conditions, the worst of all looks; NVML is closed."""
        if self._nvml is not None:
            told(self._nvml.nvmlShutdown)
        found: dict[str, Any] = {"gpu": self._uuid or ""}
        for name, worst in WORST.items():
            if values := self._told_of(name):
                found[name] = worst(values)
        if every := self._told_of("bits"):
            found["gpu_throttle"] = [
                name for bit, name in THROTTLED.items() if any(bits & bit for bits in every)
            ]
        return found

    def _told_of(self, name: str) -> list[Any]:
        return [look[name] for look in self._looks if name in look]

    def _answers(self) -> dict[str, Any]:
        """Each question for itself: it fails on some GPU, driver or container."""
        if self._gpu is None:
            return {}
        found = {
            "gpu_clock_mhz": self._gpu.clock_mhz,
            "gpu_power_w": self._gpu.power_w,
            "gpu_temperature_c": self._gpu.temperature_c,
            "bits": self._gpu.throttle_bits,
            "gpu_processes": self._gpu.processes,
        }
        return {name: value for name, value in found.items() if value is not None}
