"""GPUs: whether they are there, idle and cool, and how they are joined."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

from spbench.doctor.diagnosis import DeviceChoice, Diagnosis, fail, ok, warn
from spbench.results.nvml import BETWEEN_SOCKETS, NVLINK, Answer, Seen
from spbench.text import counted

NO_LIBRARY = 12
REMEDIES = {
    4: "let this user read and write /dev/nvidia*",
    9: "load the driver's kernel module: modprobe nvidia",
    NO_LIBRARY: "install NVIDIA's driver; start a container with --gpus all",
    18: "restart the machine: its driver was updated, and the old kernel module is still loaded",
}
"""By NVML's error code."""
USED_BYTES = 2**28
"""Less than one process takes that only opens a GPU."""
BUSY_PERCENT = 5


def present(
    answer: Answer, here: Sequence[Seen], asked: DeviceChoice, shown: str | None
) -> Diagnosis:
    """The driver's GPUs, of which ``here`` are those that CUDA_VISIBLE_DEVICES (``shown``) leaves.

    A machine without any will do unless --device cuda was asked for.
    """
    grade = fail if asked == "cuda" else warn
    if answer.error:
        if answer.code == NO_LIBRARY and asked == "auto":
            return ok("gpus", f"none ({answer.error}); ranks compute on the CPU")
        return grade("gpus", answer.error, REMEDIES.get(answer.code, "see what nvidia-smi says"))
    if lost := [gpu for gpu in answer.gpus if gpu.lost]:
        found = "; ".join(f"GPU {gpu.index}: {gpu.lost}" for gpu in lost)
        return fail("gpus", found, "restart the machine; its log (dmesg, Xid) says more")
    if not here:
        found, remedy = _none(answer, shown)
        return fail("gpus", found, remedy) if asked == "cuda" else ok("gpus", found)
    models = Counter(gpu.name for gpu in here)
    found = ", ".join(f"{count} x {name}" for name, count in models.items())
    if len(models) > 1:
        remedy = "choose GPUs of one model with CUDA_VISIBLE_DEVICES: the slowest sets the pace"
        return warn("gpus", found, remedy)
    return ok("gpus", found)


def _none(answer: Answer, shown: str | None) -> tuple[str, str]:
    if answer.gpus:
        said = f"CUDA_VISIBLE_DEVICES={shown!r} leaves none of {counted(len(answer.gpus), 'GPU')}"
        return said, "unset CUDA_VISIBLE_DEVICES"
    return "the driver shows none", "see what nvidia-smi -L and lspci say"


def idle(here: Iterable[Seen]) -> Diagnosis:
    busy = [said for gpu in here if (said := _busy(gpu))]
    if not busy:
        return ok("gpus idle", "no other process computes on them")
    remedy = "end what computes there (nvidia-smi lists it), or choose others with "
    return warn("gpus idle", "; ".join(busy), f"{remedy}CUDA_VISIBLE_DEVICES")


def _busy(gpu: Seen) -> str:
    """Processes of other containers may not be listed; their memory and their work are seen."""
    said = []
    if gpu.processes:
        said.append(f"{gpu.processes} compute {'process' if gpu.processes == 1 else 'processes'}")
    if gpu.used_bytes is not None and gpu.used_bytes > USED_BYTES:
        said.append(f"{gpu.used_bytes / 2**30:.1f} GiB in use")
    if gpu.busy_percent is not None and gpu.busy_percent > BUSY_PERCENT:
        said.append(f"{gpu.busy_percent:.0f} % busy")
    return f"GPU {gpu.index}: {', '.join(said)}" if said else ""


def cool(here: Iterable[Seen]) -> Diagnosis:
    held = [f"GPU {gpu.index}: {', '.join(gpu.throttled)}" for gpu in here if gpu.throttled]
    if not held:
        return ok("gpu clocks", "nothing holds them down")
    remedy = "let them cool, look after fans and power; rows measured so are flagged noisy"
    return warn("gpu clocks", "; ".join(held), remedy)


def topology(paths: Mapping[tuple[int, int], str], here: Sequence[Seen]) -> Diagnosis:
    """How each pair of two or more GPUs is joined; a way between sockets is the slowest."""
    pairs = {pair: path for pair in _pairs(here) if (path := paths.get(pair))}
    if not pairs:
        return ok("gpu links", "NVML does not tell how the GPUs are joined")
    ways = Counter(pairs.values())
    if set(ways) == {NVLINK}:
        return ok("gpu links", f"NVLink between all {counted(len(pairs), 'pair')}")
    found = ", ".join(f"{way}: {counted(count, 'pair')}" for way, count in ways.most_common())
    if BETWEEN_SOCKETS not in ways:
        return ok("gpu links", found)
    near = _near(here, pairs)
    remedy = "expect the pace of the slowest way"
    if len(near) > 1:
        names = ",".join(str(index) for index in near)
        remedy += f"; CUDA_VISIBLE_DEVICES={names} are nearer to each other"
    return warn("gpu links", found, remedy)


def _pairs(here: Sequence[Seen]) -> list[tuple[int, int]]:
    return list(combinations(sorted(gpu.index for gpu in here), 2))


def _near(here: Sequence[Seen], pairs: Mapping[tuple[int, int], str]) -> list[int]:
    """The most GPUs, found one after the other, of which no two are joined between sockets."""
    indices = sorted(gpu.index for gpu in here)
    best: list[int] = []
    for first in indices:
        group = [first]
        for other in indices:
            apart = [pairs.get((min(one, other), max(one, other))) for one in group]
            if other not in group and BETWEEN_SOCKETS not in apart:
                group.append(other)
        best = max(best, sorted(group), key=len)
    return best
