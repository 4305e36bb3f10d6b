"""Runs every check of ``spbench doctor`` in order: software, GPUs, the machine, then ranks."""

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
from spbench.doctor.cgroup import allowed
from spbench.doctor.diagnosis import DeviceChoice, Diagnosis, skipped
from spbench.doctor.rank_collectives import try_sizes
from spbench.doctor.torch_probe import TorchFacts, probe
from spbench.errors import or_none
from spbench.launch.local import LocalLauncher
from spbench.results.environment import package_version
from spbench.results.nvml import GpuState, NvmlReport
from spbench.workload.case import Device

MOST_CPU_RANKS = 8
"""Unless --gpus says otherwise; a check with more ranks shows no more."""
NEEDED = ("torch", "gpus", "driver", "cuda", "nccl", "gloo", "temporary", "/dev/shm")
"""Checks without which ranks cannot start; of several that failed, the first is the cause."""


@dataclass(frozen=True, kw_only=True)
class Examination:
    """What to examine, and how."""

    device: DeviceChoice
    ranks: int | None
    """The larger number of ranks to try; None: as many as there are GPUs, or cores."""
    timeout_s: float
    """The time that torch may take to load, and each start of ranks."""
    environ: Mapping[str, str]
    driver: NvmlReport
    gpus: Sequence[GpuState]
    """The GPUs that ranks may use."""


def examine(examination: Examination, say: Callable[[str], None]) -> list[Diagnosis]:
    """Returns the diagnoses in order; ``say`` announces what takes more than a moment."""
    version = package_version("torch")
    uses_gpus = examination.gpus and examination.device != "cpu"
    loaded: TorchFacts | str = ""
    if version:
        say("loading torch")
        loaded = probe("cuda" if uses_gpus else "cpu", examination.timeout_s)
    gpu_count = len(examination.gpus)
    device = software.device_of(examination.device, gpu_count, loaded)
    ranks = examination.ranks or _default_ranks(device, gpu_count)
    diagnoses = [software.python(sys.version_info[:3]), software.torch(version, loaded)]
    if isinstance(loaded, TorchFacts):
        diagnoses.append(software.backend(loaded, device))
    if examination.device != "cpu":
        diagnoses += _check_gpus(examination, loaded)
    diagnoses += _check_machine(examination.environ, ranks, device)
    return diagnoses + _try_ranks(examination.timeout_s, diagnoses, ranks, device, say)


def _default_ranks(device: Device, gpu_count: int) -> int:
    if device == "cuda":
        return max(1, gpu_count)
    return min(MOST_CPU_RANKS, max(2, _usable_cores()))


def _usable_cores() -> int:
    """The cores that this process may run on; not every system can restrict them."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _check_gpus(examination: Examination, loaded: TorchFacts | str) -> list[Diagnosis]:
    usable, driver = examination.gpus, examination.driver
    shown = examination.environ.get("CUDA_VISIBLE_DEVICES")
    diagnoses = [gpus.present(driver, usable, examination.device, shown)]
    if not usable:
        return diagnoses
    if isinstance(loaded, TorchFacts):
        diagnoses.append(software.driver(driver.driver, driver.cuda, loaded))
        diagnoses.append(software.cuda(loaded, len(usable), examination.device))
    diagnoses += [gpus.idle(usable), gpus.cool(usable)]
    return diagnoses + ([gpus.topology(driver.paths, usable)] if len(usable) > 1 else [])


def _check_machine(environ: Mapping[str, str], ranks: int, device: Device) -> list[Diagnosis]:
    group, free = allowed(), psutil.virtual_memory()
    load, name = or_none(noise.load), socket.gethostname()
    diagnoses = [
        noise.quiet(load, device) if load else skipped("quiet", "the system does not tell"),
        capacity.cores(os.cpu_count() or 1, _usable_cores(), group, ranks, device),
        capacity.memory(free.total, free.available, group, ranks),
        limits.folder("this folder", limits.space(or_none(Path.cwd) or Path())),
        limits.folder("temporary", limits.temporary()),
        limits.open_files(limits.soft_limit(resource.RLIMIT_NOFILE), ranks),
    ]
    if sys.platform == "linux":
        diagnoses.append(limits.shared_memory(limits.space(Path("/dev/shm")), ranks, device))
    if device == "cuda":
        locked = limits.soft_limit(resource.RLIMIT_MEMLOCK)
        diagnoses.append(limits.locked_memory(locked, limits.infiniband()))
    chosen = environ.get(network.GLOO_INTERFACE, "")
    addresses = [] if chosen else network.addresses_of(name)
    diagnoses.append(network.host_name(name, addresses, network.interfaces(), chosen, device))
    return [*diagnoses, network.settings(environ)]


def _try_ranks(
    timeout_s: float,
    diagnoses: Sequence[Diagnosis],
    ranks: int,
    device: Device,
    say: Callable[[str], None],
) -> list[Diagnosis]:
    """Tries two ranks, then all; skipped where a check has failed that ranks need."""
    sizes = sorted({min(2, ranks), ranks})
    failed = [diagnosis.check for diagnosis in diagnoses if diagnosis.status == "fail"]
    causes = [check for check in NEEDED if check in failed]
    if causes or ranks == 1:
        why = f"{causes[0]} failed" if causes else "a single rank has no other to send to"
        return [skipped(f"{size} ranks" if size > 1 else "ranks", why) for size in sizes]
    folder = Path(tempfile.mkdtemp(prefix="spbench-doctor-"))
    launcher = LocalLauncher(folder / "launcher.log")
    tried: list[Diagnosis] = []
    try:
        tried = try_sizes(sizes, device, launcher, folder, timeout_s, say)
    finally:
        launcher.close()
        if all(diagnosis.status == "ok" for diagnosis in tried):  # otherwise keep the logs
            shutil.rmtree(folder, ignore_errors=True)
    return tried
