"""The one reader of NVML: the driver, its GPUs, and the ways between them.

Each question is asked on its own: any of them may fail on some GPU, driver or container.
"""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import combinations
from typing import Any, final

from spbench.errors import or_none
from spbench.results.conditions import POWER_CAP, THROTTLED

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
"""Where the ways from two GPUs to the processor meet, with nvidia-smi's name of it."""


def open_nvml() -> Any:
    """The module pynvml, ready for questions; None where it is missing or the driver differs."""
    with contextlib.suppress(Exception):
        import pynvml

        pynvml.nvmlInit()
        return pynvml
    return None


@final
class Device:
    """One GPU as NVML knows it. None: it does not answer that question."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle

    @cached_property
    def name(self) -> str | None:
        return self._answer("DeviceGetName")

    @cached_property
    def uuid(self) -> str | None:
        return self._answer("DeviceGetUUID")

    @cached_property
    def compute_capability(self) -> tuple[int, int] | None:
        """Major and minor: (9, 0) is Hopper, (10, 0) the first Blackwell."""
        answer = or_none(lambda: [*map(int, self._answer("DeviceGetCudaComputeCapability"))])
        return (answer[0], answer[1]) if answer and len(answer) == 2 else None

    @property
    def total_bytes(self) -> int | None:
        return or_none(lambda: self._answer("DeviceGetMemoryInfo").total)

    @property
    def used_bytes(self) -> int | None:
        """Without what the driver keeps for itself, but for drivers before 510."""
        memory, nvml = self._nvml.nvmlDeviceGetMemoryInfo, self._nvml
        second = or_none(lambda: memory(self._handle, version=nvml.nvmlMemory_v2).used)
        return or_none(lambda: memory(self._handle).used) if second is None else second

    @property
    def power_limit_w(self) -> float | None:
        return or_none(lambda: self._answer("DeviceGetPowerManagementLimit") / 1e3)

    @property
    def power_w(self) -> float | None:
        return or_none(lambda: self._answer("DeviceGetPowerUsage") / 1e3)

    @property
    def clock_mhz(self) -> float | None:
        """The clock of the multiprocessors."""
        return self._answer("DeviceGetClockInfo", "NVML_CLOCK_SM")

    @property
    def temperature_c(self) -> float | None:
        return self._answer("DeviceGetTemperature", "NVML_TEMPERATURE_GPU")

    @property
    def busy_percent(self) -> float | None:
        return or_none(lambda: self._answer("DeviceGetUtilizationRates").gpu)

    @property
    def throttle_bits(self) -> int | None:
        return or_none(lambda: int(self._answer("DeviceGetCurrentClocksThrottleReasons")))

    @property
    def processes(self) -> int | None:
        """Compute processes on it."""
        return or_none(lambda: len(self._answer("DeviceGetComputeRunningProcesses")))

    def _answer(self, question: str, *constants: str) -> Any:
        nvml = self._nvml
        return or_none(
            lambda: getattr(nvml, f"nvml{question}")(
                self._handle, *(getattr(nvml, name) for name in constants)
            )
        )


def devices(nvml: Any) -> list[Device]:
    """All GPUs that answer to their index."""
    count = or_none(nvml.nvmlDeviceGetCount) or 0
    handles = [or_none(partial(nvml.nvmlDeviceGetHandleByIndex, index)) for index in range(count)]
    return [Device(nvml, handle) for handle in handles if handle is not None]


@dataclass(frozen=True, kw_only=True)
class GpuState:
    """The state of one GPU. None: not known."""

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
    """Without a power cap, which is not a fault."""


@dataclass(frozen=True, kw_only=True)
class NvmlReport:
    """What NVML reports of a machine, or an error in place of it."""

    error: str = ""
    code: int = 0
    driver: str = ""
    cuda: tuple[int, int] | None = None
    """The version that the driver was made for."""
    gpus: Sequence[GpuState] = ()
    paths: Mapping[tuple[int, int], str] = field(default_factory=dict)
    """The shortest way between two GPUs, by their indices in ascending order."""


def read_nvml(nvml: Any) -> NvmlReport:
    """The report that the doctor looks at. Raises nothing; ``nvml``: the module pynvml."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return NvmlReport(error=str(error), code=error.value)
    try:
        count = or_none(nvml.nvmlDeviceGetCount) or 0
        cuda = or_none(nvml.nvmlSystemGetCudaDriverVersion_v2)
        return NvmlReport(
            driver=or_none(nvml.nvmlSystemGetDriverVersion) or "",
            cuda=None if cuda is None else (cuda // 1000, cuda % 1000 // 10),
            gpus=[_gpu(nvml, index) for index in range(count)],
            paths=_paths(nvml, count),
        )
    finally:
        or_none(nvml.nvmlShutdown)


def _gpu(nvml: Any, index: int) -> GpuState:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError as error:
        return GpuState(index=index, lost=str(error))
    gpu = Device(nvml, handle)
    bits = gpu.throttle_bits or 0
    return GpuState(
        index=index,
        name=gpu.name or "",
        uuid=gpu.uuid or "",
        used_bytes=gpu.used_bytes,
        busy_percent=gpu.busy_percent,
        processes=gpu.processes,
        throttled=tuple(why for bit, why in THROTTLED.items() if bits & bit and why != POWER_CAP),
    )


def _paths(nvml: Any, count: int) -> dict[tuple[int, int], str]:
    """The ways between the pairs of GPUs that NVML knows."""
    pairs = {pair: or_none(partial(_path, nvml, *pair)) for pair in combinations(range(count), 2)}
    return {pair: path for pair, path in pairs.items() if path}


def _path(nvml: Any, *pair: int) -> str:
    two = [nvml.nvmlDeviceGetHandleByIndex(index) for index in pair]
    linked = or_none(partial(nvml.nvmlDeviceGetP2PStatus, *two, nvml.NVML_P2P_CAPS_INDEX_NVLINK))
    if linked == nvml.NVML_P2P_STATUS_OK:
        return NVLINK
    return PATHS.get(nvml.nvmlDeviceGetTopologyCommonAncestor(*two), "")
