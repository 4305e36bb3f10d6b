"""Where a run happens, as far as it is known without torch: for run.json."""

import contextlib
import os
import platform
import re
import subprocess
from collections.abc import Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from spbench import __version__
from spbench.errors import or_none
from spbench.results.cuda_driver import cuda_gpus
from spbench.results.nvml import Device, GpuState, devices, open_nvml, read_nvml
from spbench.results.variables import variables

VISIBLE = "CUDA_VISIBLE_DEVICES"
NUMA_NODES = Path("/sys/devices/system/node")
PACKAGES = ("spbench", "torch", "numpy", "pandas", "matplotlib", "pydantic")


def environment() -> dict[str, Any]:
    """Python, libraries, machine, GPUs and the variables that change how torch runs."""
    return {
        "python": platform.python_version(),
        "versions": {name: package_version(name) for name in PACKAGES},
        "platform": platform.platform(),
        "cpu": cpu_name(),
        "cpus": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "load_average": os.getloadavg(),
        "gpus": gpus() or cuda_gpus(),
        "variables": variables(os.environ),
        "git": git_state(),
    }


def package_version(name: str) -> str:
    """Version of a package, blank if it is not installed; spbench itself need not be."""
    try:
        return version(name)
    except PackageNotFoundError:
        return __version__ if name == "spbench" else ""


def gpus() -> list[dict[str, Any]]:
    """Name, identity, memory and power limit of each GPU, by NVML; none without one."""
    nvml = open_nvml()
    if nvml is None:
        return []
    try:
        return [_facts(gpu, or_none(nvml.nvmlSystemGetDriverVersion)) for gpu in devices(nvml)]
    finally:
        or_none(nvml.nvmlShutdown)


def gpu_memory(shown: str | None) -> list[int]:
    """Bytes in use on each GPU, whoever holds them; none where NVML does not answer. ``shown``: the
    value of CUDA_VISIBLE_DEVICES; other GPUs are left out."""
    import pynvml

    used = [gpu.used_bytes for gpu in visible(read_nvml(pynvml).gpus, shown)]
    return [size for size in used if size is not None]


def visible(gpus: Sequence[GpuState], shown: str | None) -> list[GpuState]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves, in its order; a name without a GPU ends it."""
    if shown is None:
        return list(gpus)
    left: list[GpuState] = []
    for name in map(str.strip, shown.split(",")):
        is_uuid = name.startswith("GPU-")
        named = [g for g in gpus if name == str(g.index) or (is_uuid and g.uuid.startswith(name))]
        if not named:
            break
        left.append(named[0])
    return left


def is_cudas_to_say(gpus: Sequence[object], shown: str | None) -> bool:
    """Whether CUDA has to be asked which GPUs there are: NVML knows none, or CUDA_VISIBLE_DEVICES
    (``shown``) names a slice, and NVML lists whole ones."""
    return not gpus or any(name.strip().startswith("MIG-") for name in (shown or "").split(","))


def names_a_gpu(shown: str | None) -> bool:
    """Whether CUDA_VISIBLE_DEVICES asks for a GPU, by its number or identity; -1, nothing, and
    Slurm's NoDevFiles hide all of them."""
    return re.match(r"\s*(\d|GPU-|MIG-)", shown or "") is not None


def _facts(gpu: Device, driver: str | None) -> dict[str, Any]:
    facts = {"name": gpu.name, "uuid": gpu.uuid, "driver": driver, "memory_bytes": gpu.total_bytes}
    more = {"compute_capability": gpu.compute_capability, "power_limit_w": gpu.power_limit_w}
    return facts | {name: value for name, value in more.items() if value is not None}


def numa_nodes(system: Path = NUMA_NODES) -> dict[int, set[int]]:
    """The cores of each NUMA node that has some; empty where the kernel does not say."""
    files = {int(path.parent.name[4:]): path for path in system.glob("node[0-9]*/cpulist")}
    cores = {node: or_none(partial(_cores, path)) for node, path in files.items()}
    return {node: found for node, found in sorted(cores.items()) if found}


def _cores(path: Path) -> set[int]:
    """The numbers in a file of ranges, as 0-3,8."""
    ranges = [part.partition("-") for part in path.read_text().strip().split(",") if part]
    return {i for first, _, last in ranges for i in range(int(first), int(last or first) + 1)}


def numa_binding(system: Path = NUMA_NODES) -> str:
    """The NUMA nodes on which this process may run, as numa0 or numa0+1, or any of several. Blank
    on a machine with one node, or where nothing is known."""
    nodes, own = numa_nodes(system), os.sched_getaffinity(0)
    bound_to = [node for node, cores in nodes.items() if cores & own]
    if len(nodes) < 2 or not bound_to:
        return ""
    return "any" if len(bound_to) == len(nodes) else f"numa{'+'.join(map(str, bound_to))}"


def git_state() -> dict[str, Any]:
    """Commit and whether the work tree differs from it; empty outside a checkout."""
    try:
        commit = git_output("rev-parse", "HEAD")
        return {"commit": commit, "dirty": bool(git_output("status", "--porcelain"))}
    except (OSError, subprocess.SubprocessError):
        return {}


def git_output(*words: str) -> str:
    """What git prints in this folder. Raises OSError or SubprocessError where it does not."""
    none = subprocess.DEVNULL
    output = subprocess.check_output(["git", *words], text=True, timeout=5, stdin=none, stderr=none)
    return output.strip()


def cpu_name() -> str:
    """Model of the processor, or at least its architecture."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
