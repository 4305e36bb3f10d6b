"""The machine during the timed pass: its load, other processes' work, the state of the GPU.

No question to the machine may stop a run: what it does not answer stays blank. NVML is asked about
this rank's GPU between blocks, since an idle GPU shows another state:

    open, look    timed ▪▪▪ look  silent ▪▪▪ look  timed ▪▪▪ look  silent ▪▪▪ look ...  state

Behind silent blocks only clocks count, a GPU's and a CPU's: they keep a GPU busier than steps that
wait for links, so its power cap may lower the clock further, and computation takes longer there.
NVML starts and finds the GPU before anything is timed, and is asked off the clock.
"""

import os
import socket
import statistics
import time
from pathlib import Path
from typing import Any, final

import psutil
import torch

from spbench.comm.group import Group
from spbench.errors import or_none
from spbench.results.conditions import THROTTLED, Conditions
from spbench.results.machine import cpu_name
from spbench.results.nvml import Device, open_nvml
from spbench.worker.memory import alloc_retries
from spbench.worker.sampling import typical
from spbench.worker.timer import ProcessorSpeed

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
            clocks = [mhz for mhz in (look.get("clock_mhz") for look in looks) if mhz is not None]
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


BUSY = ("user", "nice", "system", "irq", "softirq", "steal")
"""Fields of psutil's cpu_times in which a core works; guests are part of user."""


@final
class Machine:
    """Two looks at the cores, with looks at the GPU in between.

    All ranks meet before each look at the cores: what a rank does outside another rank's window
    would otherwise count as other processes' work there.
    """

    def __init__(self, group: Group) -> None:
        """The first look: just before the timed pass, so that no warm-up is in it."""
        self.group, self.device = group, group.device
        self.gpu = Gpu(self.device) if self.device.type == "cuda" else None
        self._speed = ProcessorSpeed(group) if self.gpu is None else None
        self._speeds: list[float] = []
        self.load_average = or_none(lambda: os.getloadavg()[0])
        self._retries_seen, self._retries = alloc_retries(self.device), 0
        group.barrier()
        self._before = _times()

    def look(self, is_silent: bool = False) -> None:
        """Right after each block, timed or silent, off the clock."""
        self._count_retries(is_silent)
        if self.gpu is not None:
            self.gpu.look(is_silent)
        if self._speed is not None:
            self._speeds.append(self._speed.look())

    def _count_retries(self, is_silent: bool) -> None:
        """Those of a timed block: silent steps have memory of their own."""
        seen, before = alloc_retries(self.device), self._retries_seen
        if seen is not None and before is not None and not is_silent:
            self._retries += seen - before
        self._retries_seen = seen

    def seen(self) -> Conditions:
        """The last look, just after the timed pass."""
        self.group.barrier()
        passed = _passed(self._before)
        facts = {
            "hardware": hardware(self.device, self.gpu and self.gpu.power_limit_w),
            "host": or_none(_host) or "",
            "cores": or_none(psutil.cpu_count),
            "load_average": self.load_average,
            # The rate of a typical time: a mean of rates would favour fast moments.
            "cpu_gflop_per_s": or_none(lambda: 1 / typical([1 / x for x in self._speeds if x])),
            "alloc_retries": None if self._retries_seen is None else self._retries,
            **passed,
            **({} if self.gpu is None else self.gpu.state()),
        }
        return or_none(lambda: Conditions.model_validate(facts)) or Conditions()


def hardware(device: torch.device, power_limit_w: float | None) -> str:
    """'AMD EPYC 9R14 x2' or 'NVIDIA H200 140 GiB 700 W': the same from run to run."""
    if device.type == "cuda":
        limit = "" if power_limit_w is None else f"{power_limit_w:.0f} W"
        words = [or_none(lambda: _gpu_name(device)) or "", limit]
    else:
        # Where a process cannot be tied to some of the cores it may use them all.
        cores = or_none(lambda: len(os.sched_getaffinity(0))) or or_none(os.cpu_count)
        words = [or_none(cpu_name) or "", f"x{cores}" if cores else ""]
    return " ".join(word for word in words if word)


def _gpu_name(device: torch.device) -> str:
    gpu = torch.cuda.get_device_properties(device)
    return f"{gpu.name} {gpu.total_memory / 2**30:.0f} GiB"


def _times() -> dict[str, float]:
    """Readings of three clocks in seconds, by the name of the difference of two of them."""
    questions = {"wall_s": time.monotonic, "busy_s": _busy_s, "cpu_s": time.process_time}
    times = {name: or_none(question) for name, question in questions.items()}
    return {name: seconds for name, seconds in times.items() if seconds is not None}


def _passed(before: dict[str, float]) -> dict[str, float]:
    now = _times()
    return {name: now[name] - before[name] for name in now.keys() & before}


def _busy_s() -> float:
    times = psutil.cpu_times()
    return sum(getattr(times, name, 0.0) for name in BUSY)


def _host() -> str:
    """The id of the machine's boot: containers have host names of their own and share the cores."""
    boot_id = Path("/proc/sys/kernel/random/boot_id")
    return (or_none(boot_id.read_text) or socket.gethostname()).strip()
