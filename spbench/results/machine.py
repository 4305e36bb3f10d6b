"""The machine of a run, as far as it is known without torch: cores, memory, GPUs, git commit.

Cores and memory are those that this process may use: the machine's, within its control groups'
limits. A limit may be set at any level, by version 1 or 2: the tightest of the process's own group
and all above it counts.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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

NO_LIMIT_BYTES = 2**60
"""Version 1 writes a number near 2**63 where there is no limit."""


@dataclass(frozen=True, kw_only=True)
class Allowed:
    """The limits of a process. None: no limit."""

    memory_bytes: int | None = None
    cores: float | None = None
    left_bytes: int | None = None
    """What a limit of memory leaves beside what its group holds already; None where no group with
    a limit tells what it holds."""


def allowed(
    groups: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")
) -> Allowed:
    """The limits of the process whose groups the file lists; without groups there are no limits."""
    text = or_none(lambda: groups.read_text(encoding="utf-8")) or ""
    memory: list[int] = []
    left: list[int] = []
    cores: list[float] = []
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for folder in _folders(root, controllers, path):
            limits = _memory(folder)
            memory += limits
            # At most one limit: a folder is of one version.
            left += [max(0, limit - held) for limit in limits for held in _held_bytes(folder)]
            cores += _cores(folder)
    return Allowed(
        memory_bytes=min(memory, default=None),
        cores=min(cores, default=None),
        left_bytes=min(left, default=None),
    )


def free_memory_bytes() -> int:
    """What processes can still get here without swapping: the lesser of what the machine has
    available and what control groups leave."""
    group = allowed()
    rooms = (psutil.virtual_memory().available, group.memory_bytes, group.left_bytes)
    return min(room for room in rooms if room is not None)


def own_cores() -> int:
    """The cores that this process may run on; not every system can tie it to some of them."""
    return or_none(lambda: len(os.sched_getaffinity(0))) or os.cpu_count() or 1


def usable_cores() -> float:
    """The lesser of the cores that this process may run on, and of its control groups' quota."""
    quota = allowed().cores
    return own_cores() if quota is None else min(own_cores(), quota)


def threads_of_a_rank(ranks: int) -> int:
    """With how many threads each of so many ranks of this machine computes: its whole cores, and
    at least one. More threads than a quota would be stopped in the midst of a step."""
    return max(1, int(usable_cores() / ranks))


def _folders(root: Path, controllers: str, path: str) -> Iterator[Path]:
    """A group's folder and all above it. In a container the folders of the host may be missing."""
    names = ["."] if not controllers else [controllers, *controllers.split(",")]
    for top in dict.fromkeys(map(root.joinpath, names)):
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for length in range(len(parts), -1, -1):
            yield top.joinpath(*parts[:length])


def _memory(folder: Path) -> list[int]:
    """Limits in bytes; version 2 writes "max" for no limit."""
    limits = [*_numbers(folder / "memory.max"), *_numbers(folder / "memory.limit_in_bytes")]
    return [limit for limit in limits if limit < NO_LIMIT_BYTES]


def _held_bytes(folder: Path) -> list[int]:
    """Bytes that a group holds, without the files that the kernel would drop first. Both versions
    count its children's."""
    names = ("memory.current", "memory.usage_in_bytes")
    held = [size for name in names for size in _numbers(folder / name)]
    text = or_none(lambda: (folder / "memory.stat").read_text(encoding="ascii")) or ""
    stat = dict(line.split()[:2] for line in text.splitlines() if len(line.split()) > 1)
    files = int(stat.get("total_inactive_file", stat.get("inactive_file", "0")))
    return [max(0, size - files) for size in held]


def _cores(folder: Path) -> list[float]:
    """Limits in cores: microseconds of processor time in a period, over its microseconds. Without
    a limit version 2 writes "max", and version 1 -1."""
    of_v1 = (folder / f"cpu.cfs_{name}_us" for name in ("quota", "period"))
    quota_and_period = _numbers(folder / "cpu.max") or [n for x in of_v1 for n in _numbers(x)]
    if len(quota_and_period) < 2 or 0 in quota_and_period:
        return []
    return [quota_and_period[0] / quota_and_period[1]]


def _numbers(file: Path) -> list[int]:
    """The whole numbers in a file, without other words; none where it cannot be read."""
    words = (or_none(lambda: file.read_text(encoding="ascii")) or "").split()
    return [int(word) for word in words if word.isdecimal()]


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
    cores = {node: or_none(partial(_cores_of_node, path)) for node, path in files.items()}
    return {node: found for node, found in sorted(cores.items()) if found}


def _cores_of_node(path: Path) -> set[int]:
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
