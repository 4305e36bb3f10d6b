"""Which devices this machine has, how many ranks it can start on them, and how fast they are."""

import os
import re
import timeit
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import click

from spbench.errors import Failure
from spbench.launch.torchrun import joined_ranks
from spbench.results.cuda_driver import cuda_gpus
from spbench.results.machine import (
    VISIBLE,
    free_memory_bytes,
    is_cudas_to_say,
    names_a_gpu,
    usable_cores,
    visible,
)
from spbench.results.machine import gpus as gpus_here
from spbench.results.nvml import GpuState
from spbench.workload.case import MAX_RANKS, Device

MAX_PROCESSES = 1024
PROBE = 512
"""Rows of the square matrices whose product times a core."""
DENSE_16_BIT_TFLOPS = {
    "GB200": 2500.0,
    "B200": 2250.0,
    "H200": 989.0,
    "H800": 989.0,
    "H100 PCIe": 756.0,
    "H100": 989.0,
    "A100": 312.0,
    "A100 PCIe": 312.0,
    "RTX 4090": 165.2,
}
"""Dense bf16 and fp16 tensor rates of the vendors' data sheets, without sparsity."""
BESIDE = re.compile(r"NVIDIA|GeForce|SXM\d?|HBM\w*|\d+GB", re.ASCII)
"""Vendor, module and memory, beside a product's name: others, as NVL, tell products apart."""


USUAL_RANKS = 8
"""Ranks that are asked about where no machine says how many there are."""


def choose_device(wanted: str, *, starts: bool = True) -> Device:
    """The device of ``--device``; ``auto`` is cuda where there is a GPU, and says it on stderr
    where one is named that is not there. Raises Failure where ranks are to start on cuda, and there
    is none; not if nothing ``starts`` here."""
    if wanted == "cpu":
        return "cpu"
    if visible_gpus() or (wanted == "cuda" and not starts):
        return "cuda"
    if wanted == "cuda":
        raise Failure(f"--device cuda: no GPU is visible here ({_hidden_by()}); use cpu")
    if names_a_gpu(os.environ.get(VISIBLE)):
        click.echo(f"no GPU is visible here ({_hidden_by()}): ranks compute on the CPU", err=True)
    return "cpu"


def default_ranks(device: Device, *, nodes: int = 1) -> int:
    """The ranks that torchrun started; else all GPUs of all nodes, or 2 a node on a CPU; of nodes
    without a GPU, on which nothing starts, as many as a node usually has."""
    of_node = (len(visible_gpus()) or USUAL_RANKS) if device == "cuda" else 2
    return joined_ranks() or nodes * of_node


def no_gpu_here() -> str:
    """Says that no GPU is visible, and what hides it."""
    return f"no GPU is visible here ({_hidden_by()})"


def why_not_here(ranks: int, device: Device, *, share: bool = False, nodes: int = 1) -> str | None:
    """Why ``nodes`` machines like this one cannot start so many ranks, and what would work."""
    started = joined_ranks()
    if started is not None:
        others = f"this process is one of {started} ranks that were started"
        return None if ranks == started else others
    if share:
        return None if ranks <= MAX_RANKS else f"too many for one group; use 1 to {MAX_RANKS}"
    if device == "cpu":
        most = min(MAX_PROCESSES * nodes, MAX_RANKS)
        where = "one machine" if nodes == 1 else f"{nodes} machines"
        return None if ranks <= most else f"too many processes for {where}; use 1 to {most}"
    available = min(len(visible_gpus()) * nodes, MAX_RANKS)
    if ranks <= available:
        return None
    if not available:
        return f"{no_gpu_here()}; use --device cpu"
    if nodes > 1:
        return f"{nodes} machines like this one have {available} GPUs; use 1 to {available}"
    hidden = f" ({_hidden_by()})" if VISIBLE in os.environ else ""
    return (
        f"this machine has {available} GPUs{hidden}; use 1 to {available}, --device cpu, "
        f"or --nnodes for several machines"
    )


def visible_gpus() -> list[dict[str, Any]]:
    """The GPUs that CUDA would let a process that is started here see, in its order."""
    here, shown = gpus_here(), os.environ.get(VISIBLE)
    if is_cudas_to_say(here, shown):
        return cuda_gpus()
    states = [GpuState(index=i, uuid=str(gpu.get("uuid", ""))) for i, gpu in enumerate(here)]
    return [here[gpu.index] for gpu in visible(states, shown)]


def least_capability(gpus: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """The compute capability of the oldest of these GPUs; (0, 0) where NVML does not say."""
    known = [gpu["compute_capability"] for gpu in gpus if gpu.get("compute_capability")]
    return min(known, default=(0, 0))


def _hidden_by() -> str:
    """Why a process that is started here sees no GPU, or fewer than there are."""
    shown = os.environ.get(VISIBLE)
    why = [] if shown is None else [f"{VISIBLE} is {shown!r}"]
    if not gpus_here():
        why.append("no NVIDIA driver answers, neither NVML nor CUDA")
    return ", and ".join(why) or "the driver shows none"


def known_peak(gpus: Sequence[Mapping[str, Any]], dtype: str) -> float | None:
    """Tflop/s of one GPU of this machine in ``dtype``, for MFU; None if that is not known."""
    if not gpus or dtype not in ("bfloat16", "float16"):
        return None
    words = re.split(r"[ -]", str(gpus[0]["name"]))
    product = " ".join(word for word in words if not BESIDE.fullmatch(word))
    return DENSE_16_BIT_TFLOPS.get(product.replace("PCIE", "PCIe"))


@final
@dataclass(frozen=True, kw_only=True)
class Machines:
    """What the ranks of a launch have together."""

    cores: int
    memory_bytes: float
    core_flops_per_s: float
    gpus: Sequence[Mapping[str, Any]] = ()

    @classmethod
    def here(cls, nodes: int = 1) -> "Machines":
        """As many machines like this one."""
        return cls(
            cores=nodes * max(1, int(usable_cores())),
            memory_bytes=nodes * free_memory_bytes(),
            core_flops_per_s=_core_flops_per_s(),
            gpus=visible_gpus(),
        )


def _core_flops_per_s() -> float:
    """The rate of one core: the best of a few products, some milliseconds each."""
    import torch

    threads, matrix = torch.get_num_threads(), torch.ones(PROBE, PROBE)
    torch.set_num_threads(1)
    took_s = timeit.repeat(lambda: matrix @ matrix, repeat=8, number=1)
    torch.set_num_threads(threads)
    return 2 * PROBE**3 / min(took_s)
