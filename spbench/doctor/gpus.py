"""Checks whether GPUs are visible, idle and cool, and how they are connected."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

from spbench.doctor.diagnosis import DeviceChoice, Diagnosis, fail, ok, warn
from spbench.results.machine import names_a_gpu
from spbench.results.nvml import BETWEEN_SOCKETS, NVLINK, GpuState, NvmlReport
from spbench.text import counted

NO_LIBRARY = 12
REMEDIES = {
    4: "let this user read and write /dev/nvidia*",
    9: "load the driver's kernel module: modprobe nvidia",
    NO_LIBRARY: "install NVIDIA's driver; start a container with --gpus all",
    18: "restart the machine: its driver was updated, and the old kernel module is still loaded",
}
"""What to do, by NVML's error code."""
WITHOUT_NVML = (
    "for clocks, temperature and other processes start the container with NVIDIA's utilities, too: "
    "NVIDIA_DRIVER_CAPABILITIES=compute,utility"
)
USED_BYTES = 2**28
"""Less memory than a process takes that only opens a GPU."""
BUSY_PERCENT = 5
LOCKED = "a locked clock (nvidia-smi --lock-gpu-clocks MHZ) keeps timed and silent steps comparable"


def present(
    report: NvmlReport, usable: Sequence[GpuState], choice: DeviceChoice, shown: str | None
) -> Diagnosis:
    """``usable``: those of the driver's GPUs that CUDA_VISIBLE_DEVICES (``shown``) leaves, or what
    CUDA shows where NVML does not answer.

    A machine without GPUs will do unless --device cuda was given, or the variable names one.
    """
    grade = fail if choice == "cuda" else warn
    if report.error and usable:
        found = f"{_by_model(usable)}, as CUDA shows; NVML does not answer ({report.error})"
        return warn("gpus", found, WITHOUT_NVML)
    if report.error:
        if report.code == NO_LIBRARY and choice == "auto":
            if not names_a_gpu(shown):
                return ok("gpus", f"none ({report.error}); ranks run on the CPU")
            found = f"CUDA_VISIBLE_DEVICES={shown!r}, but no driver is here ({report.error})"
            return warn("gpus", f"{found}; ranks run on the CPU", REMEDIES[NO_LIBRARY])
        return grade("gpus", report.error, REMEDIES.get(report.code, "read what nvidia-smi says"))
    if lost := [gpu for gpu in report.gpus if gpu.lost]:
        found = "; ".join(f"GPU {gpu.index}: {gpu.lost}" for gpu in lost)
        return fail("gpus", found, "restart the machine; its log (dmesg, Xid) may say why")
    if not usable:
        found, remedy = "the driver shows none", "read what nvidia-smi -L and lspci list"
        if report.gpus:
            hidden = counted(len(report.gpus), "GPU")
            found = f"CUDA_VISIBLE_DEVICES={shown!r} hides all of {hidden}"
            remedy = "unset CUDA_VISIBLE_DEVICES"
        return fail("gpus", found, remedy) if choice == "cuda" else ok("gpus", found)
    found = _by_model(usable)
    if len({gpu.name for gpu in usable}) > 1:
        choose = "choose one model with CUDA_VISIBLE_DEVICES"
        return warn("gpus", found, f"{choose}, since a step waits for its slowest GPU")
    return ok("gpus", found)


def _by_model(usable: Sequence[GpuState]) -> str:
    models = Counter(gpu.name for gpu in usable)
    return ", ".join(f"{count} x {name}" for name, count in models.items())


def idle(usable: Iterable[GpuState]) -> Diagnosis:
    busy = [use for gpu in usable if (use := _use(gpu))]
    if not busy:
        return ok("gpus idle", "no other process uses them")
    remedy = "end the processes that nvidia-smi lists, or choose others with CUDA_VISIBLE_DEVICES"
    return warn("gpus idle", "; ".join(busy), remedy)


def _use(gpu: GpuState) -> str:
    """NVML may not list the processes of other containers, but counts their memory and work."""
    uses = []
    if gpu.processes:
        uses.append(counted(gpu.processes, "compute process"))
    if gpu.used_bytes is not None and gpu.used_bytes > USED_BYTES:
        uses.append(f"{gpu.used_bytes / 2**30:.1f} GiB in use")
    if gpu.busy_percent is not None and gpu.busy_percent > BUSY_PERCENT:
        uses.append(f"{gpu.busy_percent:.0f} % busy")
    return f"GPU {gpu.index}: {', '.join(uses)}" if uses else ""


def cool(usable: Iterable[GpuState]) -> Diagnosis:
    """NVML does not tell whether somebody has locked a clock, so that is said in any case."""
    slowed = [f"GPU {gpu.index}: {', '.join(gpu.throttled)}" for gpu in usable if gpu.throttled]
    if not slowed:
        return ok("gpu clocks", f"not throttled; {LOCKED}")
    remedy = "let them cool, and check fans and power; launches would be flagged noisy"
    return warn("gpu clocks", "; ".join(slowed), remedy)


def topology(paths: Mapping[tuple[int, int], str], usable: Sequence[GpuState]) -> Diagnosis:
    """How each pair of two or more GPUs is connected; between sockets is the slowest path."""
    indices = sorted(gpu.index for gpu in usable)
    pairs = {pair: path for pair in combinations(indices, 2) if (path := paths.get(pair))}
    if not pairs:
        return ok("gpu links", "NVML does not tell how the GPUs are connected")
    kinds = Counter(pairs.values())
    if set(kinds) == {NVLINK}:
        return ok("gpu links", f"NVLink between all {counted(len(pairs), 'pair')}")
    found = ", ".join(f"{kind}: {counted(count, 'pair')}" for kind, count in kinds.most_common())
    if BETWEEN_SOCKETS not in kinds:
        return ok("gpu links", found)
    remedy = "expect collectives to be as slow as the slowest path"
    if len(near := _near(indices, pairs)) > 1:
        remedy += f"; CUDA_VISIBLE_DEVICES={','.join(near)} avoids paths between sockets"
    return warn("gpu links", found, remedy)


def _near(indices: Sequence[int], pairs: Mapping[tuple[int, int], str]) -> list[str]:
    """A group of GPUs, as large as a greedy search finds, without a path between sockets."""
    best: list[int] = []
    for first in indices:
        group = [first]
        for other in indices:
            kinds = [pairs.get((min(near, other), max(near, other))) for near in group]
            if other not in group and BETWEEN_SOCKETS not in kinds:
                group.append(other)
        best = max(best, sorted(group), key=len)
    return [str(gpu) for gpu in best]
