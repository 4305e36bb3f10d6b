"""Cores and memory, as ranks may use them."""

from __future__ import annotations

from spbench.doctor.diagnosis import Diagnosis, ok, warn
from spbench.results.cgroup import Allowed
from spbench.text import counted
from spbench.workload.case import Device

GIB = 2**30
RANK_BYTES = GIB
"""Torch and its libraries take a third of it in each rank, on a GPU more."""


def cores(count: int, ours: int, allowed: Allowed, ranks: int, device: Device) -> Diagnosis:
    """``count`` of the machine, of which this process may run on ``ours``.

    Each rank computes with as many threads as it has cores to run on; a quota below that stops
    them in the middle of a step, and a step is as long as its slowest rank.
    """
    found = counted(count, "core")
    if ours < count:
        found = f"{ours} of {found}"
    if allowed.cores is not None and allowed.cores < ours:
        return warn(
            "cores",
            f"{found}, with the time of {allowed.cores:g} (the control group's quota)",
            "tie the container to cores (--cpuset-cpus) in place of a quota (--cpus)",
        )
    if device == "cpu" and ours < ranks:
        fewer = f"at most {ours} ranks" if ours > 1 else "a machine with more cores"
        return warn("cores", f"{found} for {ranks} ranks, which take turns", f"use {fewer}")
    return ok("cores", found)


def memory(total_bytes: int, free_bytes: int, allowed: Allowed, ranks: int) -> Diagnosis:
    """``free_bytes``: that can be had without swapping."""
    found = f"{_gib(free_bytes)} of {_gib(total_bytes)} GiB free"
    least = free_bytes
    if allowed.memory_bytes is not None and allowed.memory_bytes < total_bytes:
        found += f", {_gib(allowed.memory_bytes)} GiB allowed by the control group"
        least = min(least, allowed.memory_bytes)
    if least < ranks * RANK_BYTES:
        whom = counted(ranks, "rank")
        remedy = f"free some, or raise the limit: {whom} and a small model want {ranks} GiB"
        return warn("memory", found, remedy)
    return ok("memory", found)


def _gib(count: int) -> str:
    return f"{count / GIB:.3g}"
