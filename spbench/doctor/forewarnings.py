"""What ``doctor`` knows to disturb times, in a sentence each before the first launch of a run.

A run on a machine that others use measures noise, and takes many times as long as it would. Its
rows say so, one by one and afterwards; here it is said while it can still be stopped.
"""

import os
from collections.abc import Iterator, Mapping, Sequence

from spbench.doctor import checks, noise
from spbench.doctor.checks import Diagnosis
from spbench.errors import or_none
from spbench.results.cgroup import allowed, own_cores, threads_of_a_rank
from spbench.results.environment import VISIBLE, visible
from spbench.results.nvml import GpuState, read_nvml
from spbench.workload.case import Device

THREADS = "OMP_NUM_THREADS"


def forewarnings(
    device: Device, ranks_here: Sequence[int], environ: Mapping[str, str]
) -> list[str]:
    """Sentences on this machine; none where nothing is known to disturb.

    ``ranks_here``: the numbers of ranks that start on it.
    """
    if not ranks_here:
        return []
    found = [check for check in _checks(device) if check.status == "warn"]
    sentences = [f"{check.check}: {check.found}; {check.remedy}" for check in found]
    if distorting := [name for name in checks.distorting(environ) if name != "SPBENCH_FAULT"]:
        names = ", ".join(distorting)
        sentences.append(f"variables: {names} set, which makes steps slower; unset {names}")
    if unused := _unused_threads(ranks_here, environ):
        sentences.append(unused)
    return [f"warning: {sentence}" for sentence in sentences]


def _checks(device: Device) -> Iterator[Diagnosis]:
    load = noise.load_if_busy() if device == "cpu" else None
    if load is not None:
        yield noise.quiet(load, device)
    # More ranks than cores are another sentence: here only a quota counts.
    yield checks.cores(os.cpu_count() or 1, own_cores(), allowed(), 1, device)
    if device == "cuda":
        usable = or_none(_usable_gpus) or []
        yield checks.gpus_idle(usable)
        yield checks.gpu_clocks(usable)


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
