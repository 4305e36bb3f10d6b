"""Limits of memory and processor time that control groups (versions 1 and 2) set this process.

A limit may be set at any level: the tightest of the process's own group and all above it counts.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from spbench.errors import or_none

NO_LIMIT_BYTES = 2**60
"""Version 1 writes a number near 2**63 where there is no limit."""


@dataclass(frozen=True, kw_only=True)
class Allowed:
    """The limits of a process. None: no limit."""

    memory_bytes: int | None = None
    cores: float | None = None


def allowed(
    groups: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")
) -> Allowed:
    """The limits of the process whose groups the file lists; without groups there are no limits."""
    text = or_none(lambda: groups.read_text(encoding="utf-8")) or ""
    memory: list[int] = []
    cores: list[float] = []
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for folder in _folders(root, controllers, path):
            memory += _memory(folder)
            cores += _cores(folder)
    return Allowed(memory_bytes=min(memory, default=None), cores=min(cores, default=None))


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
