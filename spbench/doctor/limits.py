"""Checks what the system lets a process open, lock and write: files, memory, folders."""

from __future__ import annotations

import resource
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from spbench.doctor.diagnosis import Diagnosis, fail, ok, warn
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


def space(folder: Path) -> Space:
    """Writes a file there and removes it. Raises nothing."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".spbench-") as file:
            file.write(bytes(2**16))
            file.flush()
        usage = shutil.disk_usage(folder)
    except OSError as error:
        return Space(folder=str(folder), why_not=error.strerror or str(error))
    return Space(folder=str(folder), total_bytes=usage.total, free_bytes=usage.free)


def temporary() -> Space:
    """The folder for temporary files. Python may find no such folder that can be written."""
    try:
        return space(Path(tempfile.gettempdir()))
    except OSError as error:
        return Space(folder="any temporary folder", why_not=error.strerror or str(error))


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
    return f"{count / GIB:.3g} GiB" if count >= GIB else f"{count / 2**20:.3g} MiB"
