"""Everything that ``spbench doctor`` looks at, in order: software, GPUs, the machine, ranks."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from spbench.doctor import capacity, gpus, limits, network, noise, software
from spbench.doctor.diagnosis import DeviceChoice, Diagnosis, skipped
from spbench.doctor.rank_collectives import try_sizes
from spbench.doctor.torch_probe import TorchFacts, probe
from spbench.launch.local import LocalLauncher
from spbench.results.cgroup import allowed
from spbench.results.environment import package_version
from spbench.results.nvml import Answer, Seen
from spbench.results.safe_query import told
from spbench.workload.case import Device

MOST_ON_A_CPU = 8
"""Ranks of a check that tells no more with more of them."""
NEEDED = ("torch", "gpus", "driver", "cuda", "nccl", "gloo", "temporary", "/dev/shm")
"""By ranks; of several that failed the first is the cause."""


@dataclass(frozen=True, kw_only=True)
class Examination:
    """What is to be examined, and how."""

    asked: DeviceChoice
    ranks: int | None
    """Of the check of all; None: as many as there are GPUs, or cores."""
    timeout_s: float
    environ: Mapping[str, str]
    driver: Answer
    here: Sequence[Seen]
    """GPUs that ranks may use."""


def examine(patient: Examination, say: Callable[[str], None]) -> list[Diagnosis]:
    """Each diagnosis in order; ``say`` is told of what takes more than a moment."""
    version = package_version("torch")
    looks_at_gpus = patient.here and patient.asked != "cpu"
    loaded: TorchFacts | str = ""
    if version:
        say("loading torch")
        loaded = probe("cuda" if looks_at_gpus else "cpu", patient.timeout_s)
    device = software.device_of(patient.asked, len(patient.here), loaded)
    ranks = patient.ranks or _ranks(device, len(patient.here))
    found = [software.python(sys.version_info[:3]), software.torch(version, loaded)]
    if isinstance(loaded, TorchFacts):
        found.append(software.backend(loaded, device))
    if patient.asked != "cpu":
        found += _gpus(patient, loaded)
    found += _machine(patient.environ, ranks, device)
    return found + _ranks_together(patient, found, ranks, device, say)


def _ranks(device: Device, gpu_count: int) -> int:
    if device == "cuda":
        return max(1, gpu_count)
    return min(MOST_ON_A_CPU, max(2, _cores()))


def _cores() -> int:
    """On which this process may run; not every system can tie it to some."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _gpus(patient: Examination, loaded: TorchFacts | str) -> list[Diagnosis]:
    here, driver = patient.here, patient.driver
    shown = patient.environ.get("CUDA_VISIBLE_DEVICES")
    found = [gpus.present(driver, here, patient.asked, shown)]
    if not here:
        return found
    if isinstance(loaded, TorchFacts):
        found.append(software.driver(driver.driver, driver.cuda, loaded))
        found.append(software.cuda(loaded, len(here), patient.asked))
    found += [gpus.idle(here), gpus.cool(here)]
    return found + ([gpus.topology(driver.paths, here)] if len(here) > 1 else [])


def _machine(environ: Mapping[str, str], ranks: int, device: Device) -> list[Diagnosis]:
    group, free = allowed(), psutil.virtual_memory()
    load, name = told(noise.load), socket.gethostname()
    found = [
        noise.quiet(load, device) if load else skipped("quiet", "the system does not tell"),
        capacity.cores(os.cpu_count() or 1, _cores(), group, ranks, device),
        capacity.memory(free.total, free.available, group, ranks),
        limits.folder("this folder", limits.space(told(Path.cwd) or Path())),
        limits.folder("temporary", limits.temporary()),
        limits.open_files(limits.soft_limit(resource.RLIMIT_NOFILE), ranks),
    ]
    if sys.platform == "linux":
        found.append(limits.shared_memory(limits.space(Path("/dev/shm")), ranks, device))
    if device == "cuda":
        locked = limits.soft_limit(resource.RLIMIT_MEMLOCK)
        found.append(limits.locked_memory(locked, limits.infiniband()))
    chosen = environ.get(network.CHOSEN, "")
    addresses = [] if chosen else network.addresses_of(name)
    found.append(network.host_name(name, addresses, network.interfaces(), chosen, device))
    return [*found, network.settings(environ)]


def _ranks_together(
    patient: Examination,
    found: Sequence[Diagnosis],
    ranks: int,
    device: Device,
    say: Callable[[str], None],
) -> list[Diagnosis]:
    """Two ranks, then all; not where something that they need has failed already."""
    sizes = sorted({min(2, ranks), ranks})
    broken = [one.check for one in found if one.status == "fail"]
    failed = [check for check in NEEDED if check in broken]
    if failed or ranks == 1:
        why = f"{failed[0]} failed" if failed else "one rank has nobody to send to"
        return [skipped(f"{size} ranks" if size > 1 else "ranks", why) for size in sizes]
    folder = Path(tempfile.mkdtemp(prefix="spbench-doctor-"))
    launcher = LocalLauncher(folder / "launcher.log")
    tried: list[Diagnosis] = []
    try:
        tried = try_sizes(sizes, device, launcher, folder, patient.timeout_s, say)
    finally:
        launcher.close()
        if all(one.status == "ok" for one in tried):  # else its logs are worth reading
            shutil.rmtree(folder, ignore_errors=True)
    return tried
