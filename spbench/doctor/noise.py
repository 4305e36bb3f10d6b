"""Checks whether other processes compute on this machine, whose noise ranks' times would show."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import psutil

from spbench.doctor.checks import Diagnosis, ok, warn
from spbench.errors import or_none
from spbench.results.conditions import OTHERS_SHARE
from spbench.text import counted
from spbench.workload.case import Device

WINDOW_S = 0.5
GLANCE_S = 0.1
"""Long enough to tell a busy machine from a quiet one, not to say who uses it."""
LEAST_NAMED_CORES = 0.05


@dataclass(frozen=True, kw_only=True)
class Load:
    """What other processes used within ``WINDOW_S``."""

    cores: int
    busy_cores: float
    load_average: float | None = None
    """The system's load average over the last minute."""
    busiest: Sequence[tuple[str, float]] = ()
    """Names of up to three processes, and the cores that each used."""


def load(sleep: Callable[[float], None] = time.sleep) -> Load:
    this = psutil.Process()
    others = [process for process in psutil.process_iter() if process.pid != os.getpid()]
    psutil.cpu_percent()  # the first call of each only starts its window
    list(_cores_used([this, *others]))
    sleep(WINDOW_S)
    cores = psutil.cpu_count() or 1
    own = dict(_cores_used([this])).get(this, 0.0)
    busy = max(0.0, psutil.cpu_percent() / 100 * cores - own)
    busiest = sorted(_cores_used(others), key=lambda pair: -pair[1])[:3]
    named = [(process, used) for process, used in busiest if used >= LEAST_NAMED_CORES]
    return Load(
        cores=cores,
        busy_cores=busy,
        load_average=or_none(lambda: os.getloadavg()[0]),
        busiest=[(f"{or_none(it.name) or 'process'} ({it.pid})", used) for it, used in named],
    )


def load_if_busy(sleep: Callable[[float], None] = time.sleep) -> Load | None:
    """What ``load`` tells of a machine that others use at a glance; None of a quiet one, and where
    the system does not tell."""
    return or_none(lambda: load(sleep) if _glance(sleep) > OTHERS_SHARE else None)


def _glance(sleep: Callable[[float], None]) -> float:
    """The part of all cores that was busy while this process slept."""
    psutil.cpu_percent()
    sleep(GLANCE_S)
    return psutil.cpu_percent() / 100


def _cores_used(processes: Sequence[psutil.Process]) -> Iterator[tuple[psutil.Process, float]]:
    """Yields each process that still runs, with the cores that it used since the last call."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            yield process, process.cpu_percent() / 100


def quiet(load: Load, device: Device) -> Diagnosis:
    """On a CPU, other processes that use a tenth of the cores spoil times, as they flag a launch as
    noisy; on GPUs they are only reported."""
    found = f"other processes use {load.busy_cores:.1f} of {counted(load.cores, 'core')}"
    if load.load_average is not None:
        found += f"; load average {load.load_average:.1f}"
    if device == "cuda" or load.busy_cores <= OTHERS_SHARE * load.cores:
        return ok("quiet", found)
    named = ", ".join(f"{name} uses {used:.1f}" for name, used in load.busiest)
    remedy = f"end them or wait ({named})" if named else "wait until they have finished"
    return warn("quiet", found, f"{remedy}; launches would be flagged noisy")
