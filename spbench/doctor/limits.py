"""Checks what the system gives to processes: cores, memory, open files, room in folders."""

import resource
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from spbench.doctor.diagnosis import Diagnosis, fail, ok, warn
from spbench.results.machine import Allowed
from spbench.text import counted
from spbench.workload.case import Device

GIB = 2**30
FILES = 256
FILES_EACH = 16
"""A rank needs ``FILES`` open files, and ``FILES_EACH`` more for each rank. Over gloo it has 19 and
4 (its launcher 25 and 5); the rest is for NCCL's channels."""


@dataclass(frozen=True, kw_only=True)
class Space:
    """A folder and its room, or why nothing can be written there."""

    folder: str
    total_bytes: int = 0
    free_bytes: int = 0
    why_not: str = ""
    """Blank where writing works."""


def cores(total: int, usable: int, allowed: Allowed, ranks: int, device: Device) -> Diagnosis:
    """``usable``: how many of the machine's ``total`` cores this process may run on.

    Ranks compute with no more threads than a quota has cores. It stops them in the midst of a step
    all the same, whenever they and what runs beside them have used it up early, and a step takes
    as long as its slowest rank.
    """
    found = counted(total, "core")
    if usable < total:
        found = f"{usable} of {found} usable"
    if allowed.cores is not None and allowed.cores < usable:
        return warn(
            "cores",
            f"{found}, but the control group's quota is the time of {allowed.cores:g}",
            "give the container cores of its own (--cpuset-cpus) instead of a quota (--cpus)",
        )
    if device == "cpu" and usable < ranks:
        remedy = f"at most {usable} ranks" if usable > 1 else "a machine with more cores"
        return warn("cores", f"{found}, fewer than the {ranks} ranks", f"use {remedy}")
    return ok("cores", found)


def memory(total_bytes: int, free_bytes: int, allowed: Allowed, ranks: int) -> Diagnosis:
    """``free_bytes``: what processes can still get without swapping, within the limits of control
    groups. A rank with a small model
    needs 1 GiB, of which torch and its libraries take a third, on a GPU more."""
    found = f"{_gib(free_bytes)} of {_gib(total_bytes)} GiB free"
    usable = free_bytes
    if allowed.memory_bytes is not None and allowed.memory_bytes < total_bytes:
        found += f"; the control group allows {_gib(allowed.memory_bytes)} GiB"
        usable = min(usable, allowed.memory_bytes)
    if usable < ranks * GIB:
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


def open_files(limit: int | None, ranks: int) -> Diagnosis:
    """``limit``: the most files that a process may open; None for no limit."""
    if limit is None:
        return ok("open files", "no limit")
    need = FILES + FILES_EACH * ranks
    if limit < need:
        found = f"at most {limit:,}, and each of {ranks} ranks may need {need:,}"
        return warn("open files", found, f"ulimit -n {need}; or LimitNOFILE= of the service")
    return ok("open files", f"at most {limit:,}")


def locked_memory(limit_bytes: int | None, infiniband: Sequence[str]) -> Diagnosis:
    """NCCL locks the memory that it sends from over InfiniBand. None for no limit."""
    if limit_bytes is None:
        return ok("locked memory", "no limit")
    found = f"at most {_size(limit_bytes)}"
    if not infiniband:
        return ok("locked memory", f"{found}; without InfiniBand that is enough")
    remedy = "ulimit -l unlimited; docker run --ulimit memlock=-1; memlock in limits.conf"
    devices = ", ".join(infiniband)
    return warn("locked memory", f"{found}, too little for InfiniBand ({devices})", remedy)


def soft_limit(which: int) -> int | None:
    """``which``: a resource.RLIMIT_ constant. None for no limit."""
    soft, _ = resource.getrlimit(which)
    return None if soft == resource.RLIM_INFINITY else soft


def infiniband(root: Path = Path("/sys/class/infiniband")) -> list[str]:
    """Names of the machine's InfiniBand devices."""
    return sorted(device.name for device in root.iterdir()) if root.is_dir() else []


def _size(count: int) -> str:
    return f"{_gib(count)} GiB" if count >= GIB else f"{count / 2**20:.3g} MiB"


def _gib(count: int) -> str:
    return f"{count / GIB:.3g}"
