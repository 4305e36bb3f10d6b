"""Runs every check of ``spbench doctor`` in order: software, GPUs, the machine, then ranks."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
import psutil

from spbench.doctor import machine_checks as checks
from spbench.doctor.machine_checks import DeviceChoice, Diagnosis, TorchFacts, skipped
from spbench.doctor.rank_collectives import try_sizes
from spbench.doctor.torch_probe import probe
from spbench.errors import or_none
from spbench.results.machine import (
    VISIBLE,
    free_memory_bytes,
    own_cores,
    package_version,
    threads_of_a_rank,
    usable_cores,
    visible,
)
from spbench.results.nvml import GpuState, NvmlReport, read_nvml
from spbench.workload.case import Device

THREADS = "OMP_NUM_THREADS"
MOST_CPU_RANKS = 8
"""Unless --gpus says otherwise; a check with more ranks shows no more."""
NEEDED = ("torch", "gpus", "driver", "cuda", "nccl", "gloo", "temporary", "/dev/shm", "variables")
"""Checks without which ranks cannot start; of several that failed, the first is the cause."""


def examine(
    choice: DeviceChoice,
    ranks: int | None,
    timeout_s: float,
    environ: Mapping[str, str],
    driver: NvmlReport,
    usable: Sequence[GpuState],
) -> list[Diagnosis]:
    """Returns the diagnoses in order; announces on stderr what takes more than a moment.

    ``ranks``: the larger number to try; None: as many as there are ``usable`` GPUs, or cores.
    ``timeout_s``: the time that torch may take to load, and each start of ranks.
    """
    version = package_version("torch")
    loaded: TorchFacts | str = ""
    if version:
        click.echo("loading torch", err=True)
        loaded = probe("cuda" if usable and choice != "cpu" else "cpu", timeout_s)
    device = checks.device_of(choice, len(usable), loaded)
    cores = min(MOST_CPU_RANKS, max(2, int(usable_cores())))
    ranks = ranks or (max(1, len(usable)) if device == "cuda" else cores)
    diagnoses = [checks.python(sys.version_info[:3]), checks.torch(version, loaded)]
    if isinstance(loaded, TorchFacts):
        diagnoses.append(checks.backend(loaded, device))
    if choice != "cpu":
        diagnoses.append(checks.gpus_seen(driver, usable, choice, environ.get(VISIBLE)))
        diagnoses += _check_gpus(choice, driver, usable, loaded) if usable else []
    diagnoses += _check_machine(environ, ranks, device)
    return diagnoses + _try_ranks(timeout_s, diagnoses, ranks, device)


def _check_gpus(
    choice: DeviceChoice, driver: NvmlReport, usable: Sequence[GpuState], loaded: TorchFacts | str
) -> list[Diagnosis]:
    diagnoses = []
    if isinstance(loaded, TorchFacts):
        if not driver.error:
            diagnoses.append(checks.driver(driver.driver, driver.cuda, loaded))
        diagnoses.append(checks.cuda(loaded, len(usable), choice))
    if any(gpu.index < 0 for gpu in usable):
        not_told = "NVML does not tell of GPUs, or slices, that CUDA alone shows"
        return diagnoses + [skipped(check, not_told) for check in ("gpus idle", "gpu clocks")]
    diagnoses += [checks.gpus_idle(usable), checks.gpu_clocks(usable)]
    return diagnoses + ([checks.gpu_links(driver.paths, usable)] if len(usable) > 1 else [])


def _check_machine(environ: Mapping[str, str], ranks: int, device: Device) -> list[Diagnosis]:
    diagnoses = [
        checks.cores(os.cpu_count() or 1, own_cores(), ranks, device),
        checks.memory(psutil.virtual_memory().total, free_memory_bytes(), ranks),
        checks.folder("this folder", checks.space(or_none(Path.cwd) or Path())),
        checks.folder("temporary", checks.space(None)),
    ]
    if sys.platform == "linux":
        diagnoses.append(checks.shared_memory(checks.space(Path("/dev/shm")), ranks, device))
    interfaces = or_none(psutil.net_if_addrs) or {}
    return [*diagnoses, checks.settings(environ, interfaces, device)]


def _try_ranks(
    timeout_s: float, diagnoses: Sequence[Diagnosis], ranks: int, device: Device
) -> list[Diagnosis]:
    """Tries two ranks, then all; skipped where a check has failed that ranks need."""
    sizes = sorted({min(2, ranks), ranks})
    failed = [diagnosis.check for diagnosis in diagnoses if diagnosis.status == "fail"]
    causes = [check for check in NEEDED if check in failed]
    if causes or ranks == 1:
        why = f"{causes[0]} failed" if causes else "a single rank has no other to send to"
        return [skipped(f"{size} ranks" if size > 1 else "ranks", why) for size in sizes]
    return try_sizes(sizes, device, timeout_s)


def forewarnings(
    device: Device, ranks_here: Sequence[int], environ: Mapping[str, str]
) -> list[str]:
    """Sentences on this machine; none where nothing is known to disturb.

    ``ranks_here``: the numbers of ranks that start on it.
    """
    if not ranks_here:
        return []
    usable = or_none(_usable_gpus) if device == "cuda" else None
    diagnoses = [checks.gpus_idle(usable), checks.gpu_clocks(usable)] if usable else []
    sentences = [
        f"{diagnosis.check}: {diagnosis.found}; {diagnosis.remedy}"
        for diagnosis in diagnoses
        if diagnosis.status == "warn"
    ]
    if distorting := [name for name in checks.distorting(environ) if name != "SPBENCH_FAULT"]:
        names = ", ".join(distorting)
        sentences.append(f"variables: {names} set, which makes steps slower; unset {names}")
    if unused := _unused_threads(ranks_here, environ):
        sentences.append(unused)
    return [f"warning: {sentence}" for sentence in sentences]


def _usable_gpus() -> list[GpuState]:
    import pynvml

    return visible(read_nvml(pynvml).gpus, os.environ.get(VISIBLE))


def _unused_threads(ranks_here: Sequence[int], environ: Mapping[str, str]) -> str:
    """A user's number of threads, where ranks compute with another: all strategies are to have the
    same share of the cores. Blank where it is the same, or none is set."""
    asked = environ.get(THREADS, "")
    others = {count: threads_of_a_rank(count) for count in sorted(set(ranks_here))}
    if not asked or all(asked == str(threads) for threads in others.values()):
        return ""
    shares = ", ".join(f"{threads} on {count}" for count, threads in others.items())
    return (
        f"{THREADS}={asked} is not used: each rank computes with its share of the cores (threads "
        f"by ranks on a machine: {shares}); 'taskset' gives them fewer cores"
    )
