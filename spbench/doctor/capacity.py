"""Checks cores and memory, as far as ranks may use them."""

from __future__ import annotations

from spbench.doctor.cgroup import Allowed
from spbench.doctor.diagnosis import Diagnosis, ok, warn
from spbench.text import counted
from spbench.workload.case import Device

GIB = 2**30
RANK_BYTES = GIB
"""Memory for a rank with a small model. torch and its libraries take a third of it, on a GPU
more."""


def cores(total: int, usable: int, allowed: Allowed, ranks: int, device: Device) -> Diagnosis:
    """``usable``: how many of the machine's ``total`` cores this process may run on.

    Each rank computes with as many threads as it has cores to run on. A quota below that stops the
    threads in the middle of a step, and a step takes as long as its slowest rank.
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
    """``free_bytes``: what processes can still get without swapping."""
    found = f"{_gib(free_bytes)} of {_gib(total_bytes)} GiB free"
    usable = free_bytes
    if allowed.memory_bytes is not None and allowed.memory_bytes < total_bytes:
        found += f"; the control group allows {_gib(allowed.memory_bytes)} GiB"
        usable = min(usable, allowed.memory_bytes)
    if usable < ranks * RANK_BYTES:
        need = f"{counted(ranks, 'rank')} with a small model need about {ranks} GiB"
        return warn("memory", found, f"free some memory, or raise the limit: {need}")
    return ok("memory", found)


def _gib(count: int) -> str:
    return f"{count / GIB:.3g}"
