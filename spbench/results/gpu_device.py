"""The one reader of NVML: a GPU, and what it answers to each question on its own."""

from __future__ import annotations

import contextlib
from functools import cached_property, partial
from typing import Any, final

from spbench.results.safe_query import told


def open_nvml() -> Any:
    """The module pynvml, ready to be asked; None where it is missing or does not fit the driver."""
    with contextlib.suppress(Exception):
        import pynvml

        pynvml.nvmlInit()
        return pynvml
    return None


@final
class Device:
    """One GPU as NVML knows it. Each question may fail on some GPU, driver or container: None."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle

    @cached_property
    def name(self) -> str | None:
        return self._answer("DeviceGetName")

    @cached_property
    def uuid(self) -> str | None:
        return self._answer("DeviceGetUUID")

    @property
    def total_bytes(self) -> int | None:
        return told(lambda: self._answer("DeviceGetMemoryInfo").total)

    @property
    def used_bytes(self) -> int | None:
        """Without what the driver keeps for itself, but for drivers before 510."""
        ask, nvml = self._nvml.nvmlDeviceGetMemoryInfo, self._nvml
        second = told(lambda: ask(self._handle, version=nvml.nvmlMemory_v2).used)
        return told(lambda: ask(self._handle).used) if second is None else second

    @property
    def power_limit_w(self) -> float | None:
        return told(lambda: self._answer("DeviceGetPowerManagementLimit") / 1e3)

    @property
    def power_w(self) -> float | None:
        return told(lambda: self._answer("DeviceGetPowerUsage") / 1e3)

    @property
    def clock_mhz(self) -> float | None:
        """The clock of the multiprocessors."""
        return self._answer("DeviceGetClockInfo", "NVML_CLOCK_SM")

    @property
    def temperature_c(self) -> float | None:
        return self._answer("DeviceGetTemperature", "NVML_TEMPERATURE_GPU")

    @property
    def busy_percent(self) -> float | None:
        return told(lambda: self._answer("DeviceGetUtilizationRates").gpu)

    @property
    def throttle_bits(self) -> int | None:
        return told(lambda: int(self._answer("DeviceGetCurrentClocksThrottleReasons")))

    @property
    def processes(self) -> int | None:
        """Compute processes on it."""
        return told(lambda: len(self._answer("DeviceGetComputeRunningProcesses")))

    def _answer(self, question: str, *constants: str) -> Any:
        nvml = self._nvml
        return told(
            lambda: getattr(nvml, f"nvml{question}")(
                self._handle, *(getattr(nvml, name) for name in constants)
            )
        )


def devices(nvml: Any) -> list[Device]:
    """All GPUs that answer to their index."""
    count = told(nvml.nvmlDeviceGetCount) or 0
    handles = [told(partial(nvml.nvmlDeviceGetHandleByIndex, index)) for index in range(count)]
    return [Device(nvml, handle) for handle in handles if handle is not None]
