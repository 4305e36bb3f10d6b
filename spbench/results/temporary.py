"""Temporary folders that name their owner, so that what a killed process left can be swept.

The file ``owner`` in such a folder holds where its process runs (boot and process namespace), its
process id and its start time, since ids are used again. The next start removes folders of this user
whose owner is gone; a folder without that file is nobody's to remove.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from spbench.errors import or_none

IN_MEMORY = Path("/dev/shm")
PREFIXES = ("spbench-", "pymp-")
"""Folders of spbench, and those in which Python's fork server has its socket."""
OWNER = "owner"
DEAD = "ZX"
"""States of a process that has ended and that its parent has not asked about."""


@contextmanager
def temporary_folder(prefix: str, where: Path | None = None) -> Iterator[Path]:
    """A new folder in ``where`` or the system's place, removed with the block unless kept."""
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=where))
    try:
        mark(folder)
        yield folder
    finally:
        if (folder / OWNER).exists():
            shutil.rmtree(folder, ignore_errors=True)


def keep(folder: Path) -> None:
    """Keeps a temporary folder for the user, beyond its block and any later start."""
    (folder / OWNER).unlink(missing_ok=True)


def mark(folder: Path) -> None:
    """Names this process as the owner of ``folder``."""
    this_process = or_none(lambda: f"{_here()} {os.getpid()} {_start(str(os.getpid()))}")
    (folder / OWNER).write_text(this_process or "unknown", encoding="ascii")


def sweep(places: Sequence[Path] = ()) -> None:
    """Removes what processes of this user left that were killed: by default in memory and in the
    system's temporary folder. What it cannot read or remove stays."""
    here = or_none(_here)
    for place in places or (IN_MEMORY, or_none(lambda: Path(tempfile.gettempdir())) or IN_MEMORY):
        for folder in or_none(partial(_our_folders, place)) or []:
            if here and or_none(partial(_is_left, folder, here)):
                shutil.rmtree(folder, ignore_errors=True)


def _our_folders(place: Path) -> list[Path]:
    with os.scandir(place) as entries:
        named = [entry for entry in entries if entry.name.startswith(PREFIXES)]
    return [Path(entry.path) for entry in named if _is_own_folder(entry)]


def _is_own_folder(entry: os.DirEntry[str]) -> bool:
    """Whether it is a folder of this user, and not a link to one."""
    if not entry.is_dir(follow_symlinks=False):
        return False
    status = or_none(partial(entry.stat, follow_symlinks=False))
    return status is not None and status.st_uid == os.geteuid()


def _is_left(folder: Path, here: str) -> bool:
    """Whether the owner ran where this process runs, and is gone."""
    where, pid, start = (folder / OWNER).read_text(encoding="ascii").split()
    return where == here and _start(pid) != start


def _here() -> str:
    """The boot and the process namespace: elsewhere the same id is another process. Raises
    RuntimeError where /proc shows the ids of another namespace."""
    if Path("/proc/self").readlink().name != str(os.getpid()):
        raise RuntimeError("/proc is that of another namespace")
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"


def _start(pid: str) -> str:
    """When the process was started, in ticks since the boot; blank if it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
    state, *others = text.rpartition(")")[2].split()  # the name before it may hold anything
    return "" if state in DEAD else others[18]
