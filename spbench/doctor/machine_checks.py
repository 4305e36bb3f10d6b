"""The checks of ``spbench doctor``, each a function of facts that were looked up before.

So tests bring their own facts. ``fail``: ranks would not start, or their results would be wrong.
``warn``: figures may suffer.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Literal

from pydantic import BaseModel

from spbench.launch.interfaces import GLOO_INTERFACE, interface_remedy, no_such_interface
from spbench.results.machine import names_a_gpu
from spbench.results.nvml import BETWEEN_SOCKETS, NVLINK, GpuState, NvmlReport
from spbench.results.variables import variables
from spbench.text import counted
from spbench.workload.case import Device

DeviceChoice = Literal["auto", "cuda", "cpu"]
"""The value of --device."""


@dataclass(frozen=True)
class Diagnosis:
    """The result of one check."""

    check: str
    status: Literal["ok", "warn", "fail", "skipped"] = field(kw_only=True)
    found: str
    """The facts, or why the check was skipped."""
    remedy: str = ""
    """What to do; blank where nothing is to be done."""


ok, warn = partial(Diagnosis, status="ok"), partial(Diagnosis, status="warn")
fail, skipped = partial(Diagnosis, status="fail"), partial(Diagnosis, status="skipped")


class TorchFacts(BaseModel, frozen=True):
    """What a torch that loads says of itself."""

    version: str
    cuda: str = ""
    """The CUDA version that torch was built for; blank where it was built for the CPU alone."""
    nccl: str = ""
    backends: list[str] = []
    """Those of gloo and nccl that torch was built with."""
    gpus: int = 0
    """The number of GPUs that torch can use."""
    troubles: list[str] = []
    """Why torch cannot use GPUs, or what went wrong on some of them."""


# Python, torch, and whether torch can use the driver, the GPUs and its backend.

LEAST_PYTHON = (3, 11)
LEAST_TORCH = (2, 11)
INSTALL = "pip install 'torch>=2.11'"
REINSTALL = f"reinstall torch, best in a new environment: {INSTALL}"
LOADS = f"read what python -c 'import torch' says; raise --timeout if it is slow; or {REINSTALL}"
CUDA_BUILD = "install a torch that is built for CUDA (https://pytorch.org/get-started)"
DRIVERS = {12: "525", 13: "580"}
"""The oldest driver for each major version of CUDA, which works for all of its minor versions."""


def python(version: Sequence[int]) -> Diagnosis:
    found = ".".join(map(str, version[:3]))
    if tuple(version[:2]) < LEAST_PYTHON:
        return fail("python", f"{found} is too old", "use Python 3.11 or newer")
    return ok("python", found)


def torch(version: str, loaded: TorchFacts | str) -> Diagnosis:
    """``version``: that of the installed package, blank if there is none. ``loaded``: what torch
    says of itself, or why it cannot be loaded."""
    if not version:
        return fail("torch", "not installed", INSTALL)
    if _numbers(version) < LEAST_TORCH:
        return fail("torch", f"{version} is too old", INSTALL)
    if isinstance(loaded, str):
        return fail("torch", f"{version} cannot be loaded: {loaded}", LOADS)
    if _numbers(loaded.version) != _numbers(version):
        found = f"{loaded.version} is loaded, although pip installed {version}"
        return fail("torch", found, "remove the other torch from PYTHONPATH or this folder")
    built = f"built for CUDA {loaded.cuda}" if loaded.cuda else "built for the CPU"
    return ok("torch", f"{loaded.version}, {built}")


def _numbers(version: str) -> tuple[int, ...]:
    """(2, 11) for 2.11.0a0+git1; empty, and so older than any, for what is not a version."""
    return tuple(map(int, re.findall(r"\d+", version.partition("+")[0])[:2]))


def device_of(choice: DeviceChoice, gpus: int, loaded: TorchFacts | str) -> Device:
    """The device that ranks are tried on; auto avoids GPUs that torch was not built for."""
    if choice != "auto":
        return choice
    return "cuda" if gpus and not (isinstance(loaded, TorchFacts) and not loaded.cuda) else "cpu"


def cuda(loaded: TorchFacts, gpus: int, choice: DeviceChoice) -> Diagnosis:
    """Whether torch can use all GPUs that the driver shows, which are ``gpus``, one or more."""
    shown = counted(gpus, "GPU")
    if not loaded.cuda:
        grade = fail if choice == "cuda" else warn
        found = f"there are {shown}, but torch is built for the CPU only"
        return grade("cuda", found, f"{CUDA_BUILD}, or use --device cpu")
    if loaded.troubles:
        found = f"torch can use {loaded.gpus} of {shown}: {'; '.join(loaded.troubles)}"
        return fail("cuda", found, "check the GPUs with nvidia-smi; --device cpu works meanwhile")
    if loaded.gpus < gpus:
        found = f"torch sees {loaded.gpus} of the {shown} that the driver shows"
        return warn("cuda", found, "compare CUDA_VISIBLE_DEVICES with what nvidia-smi -L lists")
    return ok("cuda", f"torch computes on {shown}")


def driver(version: str, cuda: tuple[int, int] | None, loaded: TorchFacts) -> Diagnosis:
    """Whether the driver is new enough for the CUDA that torch was built for.

    ``cuda``: the CUDA version that the driver was made for. A compatibility package may make an
    older driver work: it does wherever torch can use a GPU.
    """
    if not loaded.cuda:
        return skipped("driver", f"{version}; torch is built for the CPU and needs no driver")
    if cuda is None:
        return ok("driver", version)
    found = f"{version} for CUDA {cuda[0]}.{cuda[1]}"
    major = _numbers(loaded.cuda)[0]
    if cuda[0] < major and not loaded.gpus:
        newer = f"driver {DRIVERS[major]} or newer" if major in DRIVERS else "a newer driver"
        remedy = f"install {newer}, or a torch built for CUDA {cuda[0]}"
        return fail("driver", f"{found} is too old for torch's CUDA {loaded.cuda}", remedy)
    return ok("driver", found)


def backend(loaded: TorchFacts, device: Device) -> Diagnosis:
    """Whether torch has the library that moves data between ranks."""
    name = "nccl" if device == "cuda" else "gloo"
    if name not in loaded.backends:
        remedy = CUDA_BUILD if device == "cuda" else REINSTALL
        return fail(name, "torch is built without it", remedy)
    return ok(name, loaded.nccl if device == "cuda" and loaded.nccl else "built in")


# GPUs: whether they are visible, idle and cool, and how they are connected.

NO_LIBRARY = 12
REMEDIES = {
    4: "let this user read and write /dev/nvidia*",
    9: "load the driver's kernel module: modprobe nvidia",
    NO_LIBRARY: "install NVIDIA's driver; start a container with --gpus all",
    18: "restart the machine: its driver was updated, and the old kernel module is still loaded",
}
"""What to do, by NVML's error code."""
WITHOUT_NVML = (
    "for clocks, temperature and other processes start the container with NVIDIA's utilities, too: "
    "NVIDIA_DRIVER_CAPABILITIES=compute,utility"
)
USED_BYTES = 2**28
"""Less memory than a process takes that only opens a GPU."""
BUSY_PERCENT = 5
LOCKED = "a locked clock (nvidia-smi --lock-gpu-clocks MHZ) keeps timed and silent steps comparable"


def gpus_seen(
    report: NvmlReport, usable: Sequence[GpuState], choice: DeviceChoice, shown: str | None
) -> Diagnosis:
    """``usable``: those of the driver's GPUs that CUDA_VISIBLE_DEVICES (``shown``) leaves, or what
    CUDA shows where NVML does not answer.

    A machine without GPUs will do unless --device cuda was given, or the variable names one.
    """
    grade = fail if choice == "cuda" else warn
    if report.error and usable:
        found = f"{_by_model(usable)}, as CUDA shows; NVML does not answer ({report.error})"
        return warn("gpus", found, WITHOUT_NVML)
    if report.error:
        if report.code == NO_LIBRARY and choice == "auto":
            if not names_a_gpu(shown):
                return ok("gpus", f"none ({report.error}); ranks run on the CPU")
            found = f"CUDA_VISIBLE_DEVICES={shown!r}, but no driver is here ({report.error})"
            return warn("gpus", f"{found}; ranks run on the CPU", REMEDIES[NO_LIBRARY])
        return grade("gpus", report.error, REMEDIES.get(report.code, "read what nvidia-smi says"))
    if lost := [gpu for gpu in report.gpus if gpu.lost]:
        found = "; ".join(f"GPU {gpu.index}: {gpu.lost}" for gpu in lost)
        return fail("gpus", found, "restart the machine; its log (dmesg, Xid) may say why")
    if not usable:
        found, remedy = "the driver shows none", "read what nvidia-smi -L and lspci list"
        if report.gpus:
            hidden = counted(len(report.gpus), "GPU")
            found = f"CUDA_VISIBLE_DEVICES={shown!r} hides all of {hidden}"
            remedy = "unset CUDA_VISIBLE_DEVICES"
        return fail("gpus", found, remedy) if choice == "cuda" else ok("gpus", found)
    found = _by_model(usable)
    if len({gpu.name for gpu in usable}) > 1:
        choose = "choose one model with CUDA_VISIBLE_DEVICES"
        return warn("gpus", found, f"{choose}, since a step waits for its slowest GPU")
    return ok("gpus", found)


def _by_model(usable: Sequence[GpuState]) -> str:
    models = Counter(gpu.name for gpu in usable)
    return ", ".join(f"{count} x {name}" for name, count in models.items())


def gpus_idle(usable: Iterable[GpuState]) -> Diagnosis:
    busy = [use for gpu in usable if (use := _use(gpu))]
    if not busy:
        return ok("gpus idle", "no other process uses them")
    remedy = "end the processes that nvidia-smi lists, or choose others with CUDA_VISIBLE_DEVICES"
    return warn("gpus idle", "; ".join(busy), remedy)


def _use(gpu: GpuState) -> str:
    """NVML may not list the processes of other containers, but counts their memory and work."""
    uses = []
    if gpu.processes:
        uses.append(counted(gpu.processes, "compute process"))
    if gpu.used_bytes is not None and gpu.used_bytes > USED_BYTES:
        uses.append(f"{gpu.used_bytes / 2**30:.1f} GiB in use")
    if gpu.busy_percent is not None and gpu.busy_percent > BUSY_PERCENT:
        uses.append(f"{gpu.busy_percent:.0f} % busy")
    return f"GPU {gpu.index}: {', '.join(uses)}" if uses else ""


def gpu_clocks(usable: Iterable[GpuState]) -> Diagnosis:
    """NVML does not tell whether somebody has locked a clock, so that is said in any case."""
    slowed = [f"GPU {gpu.index}: {', '.join(gpu.throttled)}" for gpu in usable if gpu.throttled]
    if not slowed:
        return ok("gpu clocks", f"not throttled; {LOCKED}")
    remedy = "let them cool, and check fans and power; launches would be flagged noisy"
    return warn("gpu clocks", "; ".join(slowed), remedy)


def gpu_links(paths: Mapping[tuple[int, int], str], usable: Sequence[GpuState]) -> Diagnosis:
    """How each pair of two or more GPUs is connected; between sockets is the slowest path."""
    indices = sorted(gpu.index for gpu in usable)
    pairs = {pair: path for pair in combinations(indices, 2) if (path := paths.get(pair))}
    if not pairs:
        return ok("gpu links", "NVML does not tell how the GPUs are connected")
    kinds = Counter(pairs.values())
    if set(kinds) == {NVLINK}:
        return ok("gpu links", f"NVLink between all {counted(len(pairs), 'pair')}")
    paths_in_words = ", ".join(
        f"{kind}: {counted(count, 'pair')}" for kind, count in kinds.most_common()
    )
    if BETWEEN_SOCKETS not in kinds:
        return ok("gpu links", paths_in_words)
    remedy = "expect collectives to be as slow as the slowest path"
    near = _near(indices, pairs)
    if len(near) > 1:
        remedy += f"; CUDA_VISIBLE_DEVICES={','.join(near)} avoids paths between sockets"
    return warn("gpu links", paths_in_words, remedy)


def _near(indices: Sequence[int], pairs: Mapping[tuple[int, int], str]) -> list[str]:
    """A group of GPUs, as large as a greedy search finds, without a path between sockets."""
    best: list[int] = []
    for first in indices:
        group = [first]
        for other in indices:
            kinds = [pairs.get((min(near, other), max(near, other))) for near in group]
            if other not in group and BETWEEN_SOCKETS not in kinds:
                group.append(other)
        best = max(best, sorted(group), key=len)
    return [str(gpu) for gpu in best]


# What the system gives to processes: cores, memory, room in folders.

GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Space:
    """A folder and its room, or why nothing can be written there."""

    folder: str
    total_bytes: int = 0
    free_bytes: int = 0
    why_not: str = ""
    """Blank where writing works."""


def cores(total: int, usable: int, ranks: int, device: Device) -> Diagnosis:
    """``usable``: how many of the machine's ``total`` cores this process may run on."""
    found = counted(total, "core")
    if usable < total:
        found = f"{usable} of {found} usable"
    if device == "cpu" and usable < ranks:
        remedy = f"at most {usable} ranks" if usable > 1 else "a machine with more cores"
        return warn("cores", f"{found}, fewer than the {ranks} ranks", f"use {remedy}")
    return ok("cores", found)


def memory(total_bytes: int, free_bytes: int, ranks: int) -> Diagnosis:
    """``free_bytes``: what processes can still get without swapping, within the limits of control
    groups. A rank with a small model needs 1 GiB, of which torch and its libraries take a third,
    on a GPU more."""
    found = f"{_gib(free_bytes)} of {_gib(total_bytes)} GiB free"
    if free_bytes < ranks * GIB:
        need = f"{counted(ranks, 'rank')} with a small model need about {ranks} GiB"
        return warn("memory", found, f"free some memory, or raise the limit: {need}")
    return ok("memory", found)


def space(folder: Path | None) -> Space:
    """Writes a file there, if None into the folder for temporary files, and removes it. Raises
    nothing: Python may find no folder for temporary files that can be written."""
    try:
        folder = folder or Path(tempfile.gettempdir())
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".spbench-") as file:
            file.write(bytes(2**16))
            file.flush()
        usage = shutil.disk_usage(folder)
    except OSError as error:
        name = "any temporary folder" if folder is None else str(folder)
        return Space(folder=name, why_not=error.strerror or str(error))
    return Space(folder=str(folder), total_bytes=usage.total, free_bytes=usage.free)


def shared_memory(shm: Space, ranks: int, device: Device) -> Diagnosis:
    """Starting ranks needs it, and NCCL passes data through it where GPUs have no direct path."""
    if shm.why_not:
        remedy = "mount -t tmpfs tmpfs /dev/shm; or start the container with --shm-size=8g"
        return fail("/dev/shm", f"cannot be written: {shm.why_not}", remedy)
    found = f"{_size(shm.free_bytes)} of {_size(shm.total_bytes)} free"
    if device == "cuda" and ranks > 1 and shm.free_bytes < GIB:
        remedy = "docker run --shm-size=8g, or --ipc=host; or delete old files in /dev/shm"
        return warn("/dev/shm", f"{found}, which may be too little for NCCL", remedy)
    return ok("/dev/shm", found)


def folder(name: str, space: Space) -> Diagnosis:
    """``name``: "this folder", where results go, or "temporary", where running ranks write."""
    if space.why_not:
        choose = "give run an --out" if name == "this folder" else "set TMPDIR to a folder"
        found = f"cannot write to {space.folder}: {space.why_not}"
        return fail(name, found, f"{choose} that you may write to")
    found = f"{_size(space.free_bytes)} free in {space.folder}"
    if space.free_bytes < GIB:
        return warn(name, found, "free some space: a long sweep writes up to 1 GiB")
    return ok(name, found)


def _size(count: int) -> str:
    return f"{_gib(count)} GiB" if count >= GIB else f"{count / 2**20:.3g} MiB"


def _gib(count: int) -> str:
    return f"{count / GIB:.3g}"


# Variables that change how ranks run.

DISTORTING = (
    "CUDA_LAUNCH_BLOCKING",
    "NCCL_P2P_DISABLE",
    "NCCL_SHM_DISABLE",
    "SPBENCH_FAULT",
    "TORCH_DISTRIBUTED_DEBUG",
    "TORCH_NCCL_ENABLE_TIMING",
)
"""Variables that make steps slower, or make a run measure something else."""
OFF = ("", "0", "OFF", "FALSE", "NO")
IGNORED_PREFIX = "SLURM_"
"""Any job has dozens of these, and torch reads none."""


def distorting(environ: Mapping[str, str]) -> list[str]:
    """Names of the variables that are set and not switched off, and distort what is measured."""
    return [name for name in DISTORTING if environ.get(name, "").upper() not in OFF]


def settings(environ: Mapping[str, str], interfaces: Collection[str], device: Device) -> Diagnosis:
    """Lists the variables that torch, NCCL, gloo and spbench read, with secret values hidden.

    ``interfaces``: the machine's network interfaces; on one that is not there gloo cannot listen.
    """
    wrong = no_such_interface(environ.get(GLOO_INTERFACE, ""), interfaces)
    if wrong is not None:
        grade = fail if device == "cpu" else warn  # NCCL has a variable of its own
        return grade("variables", wrong, interface_remedy())
    every = variables(dict(environ))
    read = {name: every[name] for name in every if not name.startswith(IGNORED_PREFIX)}
    found = ", ".join(f"{name}={value}" for name, value in read.items()) or "none that matter"
    if names := distorting(environ):
        remedy = f"unset {' '.join(names)}, unless you want to measure their effect"
        return warn("variables", found, remedy)
    return ok("variables", found)
