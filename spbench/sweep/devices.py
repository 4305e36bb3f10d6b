"""Which devices this machine has, how many ranks it can start on them, and how fast they are.

What a launch takes is estimated from counted operations and that rate. A core is timed for a
moment, a GPU does a part of what its data sheet says; once a launch has ended, its time counts.
"""

import os
import re
import sysconfig
import timeit
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Any, NamedTuple, final

import click

from spbench.errors import UNFIT, Failure, or_none
from spbench.launch.torchrun import joined_ranks
from spbench.report import units
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
from spbench.text import counted
from spbench.workload.case import MAX_RANKS, Case, Cell, Device
from spbench.workload.flops import executed_flops

MAX_PROCESSES = 1024
PROBE = 512
"""Rows of the square matrices whose product times a core."""
LOAD_S, START_S = 5.0, 1.5
"""Loading torch, once; and starting and ending the ranks of a launch."""
PART_OF_PEAK = 0.3
"""What steps reach of a core's, or a GPU's, rate in large products."""
CROWDED = 2.0
"""How much longer steps take where ranks outnumber cores and wait for each other."""
PROOF_STEPS, STEADY_STEPS, STEADY_S = 4.5, 5.5, {"cpu": 2.4, "cuda": 3.0}
"""Steps of memory and proof, of warm-up, and the least seconds of warm-up."""
PROCESS_BYTES = 300 * 2**20
"""Python and torch in a rank's process."""
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


def refuse_compiling(cases: Iterable[Case]) -> None:
    """Raises Failure where one of the cases is to be compiled, and what compiles is not here.

    torch's compiler writes C++ for a CPU, and Triton for a GPU, which needs a C compiler, too. A
    share's gate runs on the CPU.
    """
    devices = {
        device
        for case in cases
        if case.execution == "compiled"
        for device in (case.device, *(["cpu"] if case.kind == "one_gpu_share" else []))
    }
    missing = []
    cxx, cc = os.environ.get("CXX", "g++"), os.environ.get("CC", "gcc")
    if "cpu" in devices and which(cxx) is None:
        missing.append(f"a C++ compiler ({cxx}, or the one that CXX names)")
    if "cuda" in devices and find_spec("triton") is None:
        missing.append("triton (pip install triton)")
    if "cuda" in devices and which(cc) is None and which("clang") is None:
        missing.append(f"a C compiler ({cc}, clang, or the one that CC names)")
    if devices and not Path(sysconfig.get_path("include"), "Python.h").exists():
        missing.append("Python's headers (python3-dev, or another build of Python)")
    if missing:
        what = " and ".join(missing)
        raise Failure(f"--compiled needs {what}; install that, or leave out --compiled", UNFIT)


def refuse_capturing(cases: Iterable[Case]) -> None:
    """Raises Failure where one of the cases is to be captured as a CUDA graph, and cannot be."""
    for case in cases:
        if case.execution == "graph" and case.device == "cpu":
            what = "--graph captures a step on a GPU, and these ranks compute on the CPU"
            raise Failure(f"{what}; use --compiled here, or a machine with a GPU", UNFIT)
        if case.execution == "graph" and case.kind == "one_gpu_share":
            # What stands in for received data has a memory of its own, which no graph would keep.
            raise Failure("--graph captures a step with its transfers; leave out --share")


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


class RefusedHere(NamedTuple):
    """Why a machine cannot start so many ranks, and what would work; blank where nothing would."""

    reason: str
    remedy: str = ""

    def __str__(self) -> str:
        return "; ".join(part for part in self if part)


def why_not_here(ranks: int, device: Device, *, share: bool = False, nodes: int = 1) -> str | None:
    """``refused_here`` as one sentence."""
    refused = refused_here(ranks, device, share=share, nodes=nodes)
    return None if refused is None else str(refused)


def refused_here(
    ranks: int, device: Device, *, share: bool = False, nodes: int = 1
) -> RefusedHere | None:
    """Why ``nodes`` machines like this one cannot start so many ranks, and what would work.

    Parameters
    ----------
    ranks
        Of one launch.
    device
        cpu or cuda.
    share
        Whether one process stands for all ranks.
    nodes
        Machines like this one.

    Returns
    -------
    RefusedHere or None
        With numbers that would work; None: they can start.
    """
    started = joined_ranks()
    if started is not None:
        others = f"this process is one of {started} ranks that were started"
        return None if ranks == started else RefusedHere(others)
    if share:
        fits = ranks <= MAX_RANKS
        return None if fits else RefusedHere("too many for one group", f"use 1 to {MAX_RANKS}")
    if device == "cpu":
        most = min(MAX_PROCESSES * nodes, MAX_RANKS)
        where = "one machine" if nodes == 1 else f"{nodes} machines"
        too_many = RefusedHere(f"too many processes for {where}", f"use 1 to {most}")
        return None if ranks <= most else too_many
    available = min(len(visible_gpus()) * nodes, MAX_RANKS)
    if ranks <= available:
        return None
    if not available:
        return RefusedHere(no_gpu_here(), "use --device cpu")
    if nodes > 1:
        have = f"{nodes} machines like this one have {available} GPUs"
        return RefusedHere(have, f"use 1 to {available}")
    hidden = f" ({_hidden_by()})" if VISIBLE in os.environ else ""
    return RefusedHere(
        f"this machine has {available} GPUs{hidden}",
        f"use 1 to {available}, --device cpu, or --nnodes for several machines",
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
    told = [gpu["compute_capability"] for gpu in gpus if gpu.get("compute_capability")]
    return min(told, default=(0, 0))


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

    def step_s(self, case: Case) -> float | None:
        """About the seconds of a step, without communication; None on a GPU whose data sheet is not
        known."""
        of_rank = executed_flops(case.workload) / case.ranks
        if case.device == "cuda":
            peak_tflops = known_peak(self.gpus, case.workload.dtype)
            return of_rank / (PART_OF_PEAK * peak_tflops * 1e12) if peak_tflops else None
        cores = self.cores / case.processes
        if cores >= 1:  # 3 ranks on 8 cores have 2 threads each
            return of_rank / (PART_OF_PEAK * self.core_flops_per_s * int(cores))
        return CROWDED * of_rank / (PART_OF_PEAK * self.core_flops_per_s * cores)

    def launch_s(self, case: Case) -> float | None:
        """About the seconds of a launch: its start, proof and warm-up, timed and silent steps."""
        step_s = self.step_s(case)
        if step_s is None:
            return None
        budget = case.budget
        steady_s = max(STEADY_S[case.device], STEADY_STEPS * step_s)
        steady_s = min(steady_s, budget.max_warmup * step_s)
        timed = min(max(budget.seconds / step_s, budget.min_iterations), budget.max_iterations)
        passes = 2 if budget.silent else 1
        return START_S + PROOF_STEPS * step_s + steady_s + passes * timed * step_s


@final
@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What is said of a run before it starts."""

    launch_s: Mapping[str, float]
    """About the seconds of a launch, by the key of its case; none where the rate is not known."""
    sentences: Sequence[str]
    machines: Machines | None
    """None where the machine cannot be asked, or nothing can run."""


def forecast(cells: Sequence[Cell], nodes: int, limit_s: float) -> Forecast:
    """What the launches of ``cells`` will take on ``nodes`` machines like this one, in a line, and
    warnings of what will go wrong. ``limit_s``: the deadline of a launch."""
    cases = [cell.case for cell in cells if cell.why_not is None]
    machines = or_none(lambda: Machines.here(nodes)) if cases else None
    if machines is None:
        return Forecast(launch_s={}, sentences=[], machines=None)
    seconds = {case.key: machines.launch_s(case) for case in cases}
    launch_s = {key: taken_s for key, taken_s in seconds.items() if taken_s is not None}
    return Forecast(
        launch_s=launch_s,
        sentences=estimated(cases, launch_s, machines, limit_s),
        machines=machines,
    )


def estimated(
    cases: Sequence[Case], launch_s: Mapping[str, float], machines: Machines, limit_s: float
) -> list[str]:
    """A line on what the launches of a run will take, and warnings of what will go wrong.

    Parameters
    ----------
    cases
        A case for each launch.
    launch_s
        Seconds of a launch by the case's key; none of a case that nothing is known of.
    machines
        What ranks start on.
    limit_s
        The deadline of a launch, in seconds.

    Returns
    -------
    The sentences.
    """
    by_launch = [launch_s.get(case.key) for case in cases]
    known_s = [seconds for seconds in by_launch if seconds is not None]
    lines = ["estimated: time not known, since this GPU's rate is not"]
    if len(known_s) == len(cases):
        about = units.roughly(LOAD_S + sum(min(seconds, limit_s) for seconds in known_s))
        lines = [f"estimated: about {about}, by operations; the first launch corrects it"]
    late = sum(seconds > limit_s for seconds in known_s)
    if late:
        limit = f"--timeout, which is {units.roughly(limit_s)}"
        lines.append(f"warning: {counted(late, 'launch')} will hardly be done within {limit}")
    return [*lines, *_crowded(cases, machines)]


def _crowded(cases: Sequence[Case], machines: Machines) -> list[str]:
    """A warning of ranks that share a core."""
    crowded = [c for c in cases if c.device == "cpu" and c.processes > machines.cores]
    if not crowded:
        return []
    ranks = ", ".join(map(str, sorted({case.ranks for case in crowded})))
    fitting = ",".join(str(2**n) for n in range(6) if 2**n <= machines.cores)
    effect = "leaves them out" if len(crowded) < len(cases) else "gives each a core"
    return [
        f"warning: {counted(len(crowded), 'launch')} on {ranks} ranks, more than "
        f"{counted(machines.cores, 'core')}: ranks wait for each other, and times say little; "
        f"--gpus {fitting} {effect}"
    ]


def memory_needed(peak_bytes: Mapping[str, int], cases: Sequence[Case], machines: Machines) -> str:
    """A sentence on the largest of these cases, and what there is; blank where none was counted.

    ``peak_bytes``: of a rank, by the keys of cases. Ranks on a CPU share its memory.
    """
    needs = {}
    for case in cases:
        if case.key in peak_bytes:
            peak = peak_bytes[case.key]
            on_cpu = case.processes * (peak + PROCESS_BYTES)
            needs[case.key] = on_cpu if case.device == "cpu" else peak
    if not needs:
        return ""
    most = units.size("GiB", max(needs.values()))
    if cases[0].device == "cpu":
        return f"memory: up to {most} for all ranks, of {units.size('GiB', machines.memory_bytes)}"
    sizes = [gpu["memory_bytes"] for gpu in machines.gpus if gpu.get("memory_bytes")]
    there = f", of {units.size('GiB', min(sizes))}" if sizes else ""
    return f"memory: up to {most} on a GPU{there}"


def _core_flops_per_s() -> float:
    """The rate of one core: the best of a few products, some milliseconds each."""
    import torch

    threads, matrix = torch.get_num_threads(), torch.ones(PROBE, PROBE)
    torch.set_num_threads(1)
    took_s = timeit.repeat(lambda: matrix @ matrix, repeat=8, number=1)
    torch.set_num_threads(threads)
    return 2 * PROBE**3 / min(took_s)
