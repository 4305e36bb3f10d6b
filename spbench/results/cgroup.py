"""Cores and memory that this process may use: the machine's, within its control groups' limits.

A limit may be set at any level, by version 1 or 2: the tightest of the process's own group and all
above it counts.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from spbench.errors import or_none

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
