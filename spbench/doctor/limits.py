"""What the system lets each process open, lock and write: files, memory, folders."""

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
"""Open files of a rank, and as many more for each rank. Over gloo it has 19 and 4 (its launcher 25
and 5): the rest is for NCCL's channels."""
PROBE_BYTES = 2**16


@dataclass(frozen=True, kw_only=True)
class Space:
    """A folder, and what can be written there."""

    place: str
    total_bytes: int = 0
    free_bytes: int = 0
    why_not: str = ""
    """Blank: something was written there, and taken away again."""


def space(place: Path) -> Space:
    """Tries it. Raises nothing."""
    try:
        with tempfile.NamedTemporaryFile(dir=place, prefix=".spbench-") as file:
            file.write(bytes(PROBE_BYTES))
            file.flush()
        usage = shutil.disk_usage(place)
    except OSError as error:
        return Space(place=str(place), why_not=error.strerror or str(error))
    return Space(place=str(place), total_bytes=usage.total, free_bytes=usage.free)


def temporary() -> Space:
    """The folder for temporary files. Python looks for one that can be written, and may fail."""
    try:
        return space(Path(tempfile.gettempdir()))
    except OSError as error:
        return Space(place="any of the usual ones", why_not=error.strerror or str(error))


def shared_memory(shm: Space, ranks: int, device: Device) -> Diagnosis:
    """Ranks are started by way of it; NCCL passes data through it where GPUs have no direct way."""
    if shm.why_not:
        remedy = "mount it: mount -t tmpfs tmpfs /dev/shm; in a container --shm-size=8g"
        return fail("/dev/shm", f"cannot be written: {shm.why_not}", remedy)
    found = f"{_size(shm.free_bytes)} of {_size(shm.total_bytes)} free"
    if device == "cuda" and ranks > 1 and shm.free_bytes < GIB:
        remedy = "docker run --shm-size=8g, or --ipc=host; take away old files there"
        return warn("/dev/shm", f"{found}, which NCCL may fill", remedy)
    return ok("/dev/shm", found)


def folder(name: str, there: Space) -> Diagnosis:
    """Where results go, or what ranks say while they run."""
    if there.why_not:
        remedy = {
            "this folder": "go to a folder of your own, or give run one with --out",
            "temporary": "set TMPDIR to a folder that can be written",
        }[name]
        return fail(name, f"cannot write to {there.place}: {there.why_not}", remedy)
    found = f"{_size(there.free_bytes)} free in {there.place}"
    if there.free_bytes < GIB:
        return warn(name, found, "make room: results and logs of a long sweep take up to a GiB")
    return ok(name, found)


def open_files(limit: int | None, ranks: int) -> Diagnosis:
    """``limit``: of one process; None for no limit."""
    if limit is None:
        return ok("open files", "no limit")
    need = FILES + FILES_EACH * ranks
    if limit < need:
        found = f"{limit:,}, and a rank of {ranks} may want {need:,}"
        return warn("open files", found, f"ulimit -n {need}, or LimitNOFILE of the service")
    return ok("open files", f"{limit:,}")


def locked_memory(limit_bytes: int | None, infiniband: Sequence[str]) -> Diagnosis:
    """Of NCCL on GPUs: over InfiniBand it locks what it sends from. None for no limit."""
    if limit_bytes is None:
        return ok("locked memory", "no limit")
    found = _size(limit_bytes)
    if not infiniband:
        return ok("locked memory", f"{found}; there is no InfiniBand that would want more")
    remedy = "ulimit -l unlimited; docker run --ulimit memlock=-1; memlock in limits.conf"
    return warn("locked memory", f"{found}, too little for {', '.join(infiniband)}", remedy)


def soft_limit(which: int) -> int | None:
    """Of a resource.RLIMIT_."""
    soft, _ = resource.getrlimit(which)
    return None if soft == resource.RLIM_INFINITY else soft


def infiniband(root: Path = Path("/sys/class/infiniband")) -> list[str]:
    """Its devices."""
    return sorted(one.name for one in root.iterdir()) if root.is_dir() else []


def _size(count: int) -> str:
    return f"{count / GIB:.3g} GiB" if count >= GIB else f"{count / 2**20:.3g} MiB"
