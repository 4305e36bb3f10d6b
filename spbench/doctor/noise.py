"""Whether anything else computes on this machine, which would be timed along with ranks."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import psutil

from spbench.doctor.diagnosis import Diagnosis, ok, warn
from spbench.results.conditions import OTHERS_SHARE
from spbench.results.safe_query import told
from spbench.text import counted
from spbench.workload.case import Device

WINDOW_S = 0.5
LEAST_CORES = 0.05
"""A process that uses less of a core is not named."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """Cores that were busy with others for half a second, and who used most of them."""

    cores: int
    busy_cores: float
    average: float | None = None
    """Over the last minute."""
    busiest: Sequence[tuple[str, float]] = ()


def load(sleep: Callable[[float], None] = time.sleep) -> Load:
    """Looks twice, and at what happened in between."""
    ours = psutil.Process()
    others = [one for one in psutil.process_iter() if one.pid != os.getpid()]
    psutil.cpu_percent()  # the first look of each says nothing, and starts its window
    list(_shares([ours, *others]))
    sleep(WINDOW_S)
    cores = psutil.cpu_count() or 1
    of_us = dict(_shares([ours])).get(ours, 0.0)
    busy = max(0.0, psutil.cpu_percent() / 100 * cores - of_us)
    shares = sorted(_shares(others), key=lambda pair: -pair[1])[:3]
    return Load(
        cores=cores,
        busy_cores=busy,
        average=told(lambda: os.getloadavg()[0]),
        busiest=[(_named(one), share) for one, share in shares if share >= LEAST_CORES],
    )


def _shares(processes: Sequence[psutil.Process]) -> Iterator[tuple[psutil.Process, float]]:
    """Cores that each used since it was last asked."""
    for one in processes:
        with contextlib.suppress(psutil.Error):
            yield one, one.cpu_percent() / 100


def _named(process: psutil.Process) -> str:
    return f"{told(process.name) or 'process'} ({process.pid})"


def quiet(seen: Load, device: Device) -> Diagnosis:
    """On a CPU a tenth of the cores spoils a time, as it flags a launch; on GPUs it is told."""
    found = f"others use {seen.busy_cores:.1f} of {counted(seen.cores, 'core')}"
    if seen.average is not None:
        found += f", load average {seen.average:.1f}"
    if device == "cuda" or seen.busy_cores <= OTHERS_SHARE * seen.cores:
        return ok("quiet", found)
    named = ", ".join(f"{name} {share:.1f}" for name, share in seen.busiest)
    remedy = f"end it or wait: {named}" if named else "wait until it is over"
    return warn("quiet", found, f"{remedy}; times would be flagged noisy")
