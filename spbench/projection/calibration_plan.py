"""Which kernels and transfers are timed to calibrate a machine: those that the catalogue asks for.

Shapes come from dry runs of a few small workloads; what differs little is one.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import final

from pydantic import Field

from spbench.errors import Failure
from spbench.projection.calibration_calls import (
    LEARNT,
    MOST_BYTES,
    MOST_FLOPS,
    able,
    calls_of,
    calls_of_catalogue,
    distinct,
    shallow,
    tiny,
)
from spbench.projection.gpu_calls import calls_on_gpu, calls_on_gpu_of_catalogue
from spbench.projection.message_cost import host_calls
from spbench.projection.timed_kernels import label_of
from spbench.projection.trace import work
from spbench.strategies.registry import load
from spbench.workload.block import Frozen
from spbench.workload.case import Device, GateCheck
from spbench.workload.catalogue import find
from spbench.workload.timed import TimedKernel, TimedTransfer
from spbench.workload.traffic import OPS, Op
from spbench.workload.workload import Workload

WORKLOADS = ("dsp-720m-small", "wan-2.1-1.3b-small", "llama3-8b-small")
"""What shapes are taken from: two axes, one long one with text, and one with a mask. GPUs time
them in their full size, too, which is in bfloat16."""
PASSES = tuple(4**i for i in range(5, 13))
"""Elements of passes over memory: 1,024 to 16 Mi."""
TOLD = 2**12
"""Numbers of a pass below which it tells of a launch, and nothing of larger ones."""
BETWEEN = TimedKernel(kind="gemm", shape=[1, 256, 512, 256], dtype="float32")
"""What ranks of a CPU compute between two transfers: about a millisecond, as in steps of many
messages. There, too, ranks do not arrive together, gloo's threads sleep until they are called, and
one that wakes waits for a core until what computes there has had its turn."""
IN_TURN = 3
"""Further strategies under which several ranks do one block: of the next workload the next."""
QUICK_FLOPS: Mapping[Device, float] = {"cpu": 4e9, "cuda": 1e11}
"""Larger blocks are done under the first strategy alone."""
PART_OF_MEMORY, STEP_OF_MEMORY = 0.4, 0.7
"""What a timed kernel may hold of a GPU's memory, and a step: the allocator keeps others' too."""
LONGEST_ROW = 3  # of shifts that follow each other, of up to 1 MiB: larger ones fill any link
SENT_BYTES = {"cpu": [4**i for i in range(5, 13)], "cuda": [4**i for i in range(5, 15)]}
"""Bytes that a rank sends: 1 KiB to 16 MiB, on a GPU to 256 MiB: a minute over 1 Gbit/s."""


@final
class CalibrationPlan(Frozen):
    """What is timed on one number of ranks."""

    ranks: int
    kernels: list[TimedKernel]
    transfers: list[TimedTransfer]
    steps: list[GateCheck] = Field(default_factory=list)
    """Steps of a few positions and of one block."""


def plan(
    ranks: int, on: Device, workloads: Sequence[Workload] = (), memory_bytes: float = math.inf
) -> CalibrationPlan:
    """The plan for ``ranks``: of these workloads, by default of a few of the catalogue.
    ``memory_bytes``: a GPU's.

    All calls of a step are timed, and of other workloads what depends most on lengths. A GPU
    computes behind the back of the host, whose time small steps tell, and large ones the device's.
    Raises Failure where no product or no attention would be timed.
    """
    full = [name.removesuffix("-small") for name in WORKLOADS] if on == "cuda" else []
    chosen = list(workloads) or [find(name) for name in (*WORKLOADS, *full)]
    most_bytes = min(MOST_BYTES["cuda"], PART_OF_MEMORY * memory_bytes)
    found = calls_of if on == "cpu" else partial(_kernels, most_bytes=most_bytes)
    kernels = [kernel for each in chosen for kernel in found(each, ranks)]
    if on == "cuda" and not workloads:
        kernels += calls_on_gpu_of_catalogue(ranks, full, most_bytes)
    elif not workloads:
        known = {(label_of(x), x.dtype) for x in kernels if x.shape[0] >= TOLD or len(x.shape) > 1}
        kernels += calls_of_catalogue(ranks, known)
    for kind, what in (("gemm", "product"), ("attention", "attention")):
        if not any(kernel.kind == kind for kernel in kernels):
            names = ", ".join(each.name for each in chosen)
            raise Failure(
                f"{names} on {ranks} ranks: no {what} can be timed, as no strategy can run it or "
                f"each would take seconds or too much memory; add -w {WORKLOADS[0]}"
            )
    passes = [
        TimedKernel(kind="elementwise", shape=[count], dtype=dtype)
        for dtype in dict.fromkeys(each.dtype for each in chosen)
        for count in PASSES
    ]
    sizes = SENT_BYTES[on] if ranks > 1 else []
    between = BETWEEN if on == "cpu" else None
    transfers = [_transfer(op, sent, ranks, between) for op in OPS for sent in sizes]
    if on == "cpu" and ranks > 1:
        row, short = min(ranks - 1, LONGEST_ROW), [x for x in sizes if x <= 2**20]
        transfers += [_transfer("p2p", x, ranks, BETWEEN, row) for x in short if row > 1]
    return CalibrationPlan(
        ranks=ranks,
        kernels=[*distinct(kernels), *passes],
        transfers=transfers,
        steps=list(_steps(chosen, ranks, on, memory_bytes)),
    )


def _steps(
    workloads: Sequence[Workload], ranks: int, on: Device, memory_bytes: float
) -> Iterable[GateCheck]:
    """Tiny steps under the strategies of the fewest calls and of the most, which tell a call from a
    launch; and steps of one block, under the first strategy that can run it and on several ranks a
    few others, one of them in groups of fewer ranks, where there is one."""
    for number, each in enumerate(workloads):
        small = tiny(each, ranks)
        by_calls = sorted(_able_alone(small, ranks), key=partial(_calls, small, ranks, on))
        yield from _short(
            small, {*by_calls[:1], *(by_calls[-1:] if ranks > 1 else ())}, on, memory_bytes
        )
        part = shallow(each)
        names = _able_alone(part, ranks)
        yield from _short(part, names[:1], on, memory_bytes)
        rest = names[1:] if ranks > 1 else []
        turn = {rest[(IN_TURN * number + i) % len(rest)] for i in range(min(IN_TURN, len(rest)))}
        quick = QUICK_FLOPS[on]
        # With few key heads a grid of ranks is a single column, which is no smaller group.
        alike = part.model_copy(update={"kv_heads": None})
        meshes = {
            name: dict(each.on(each.flattened(alike), ranks).mesh.axes)
            for name, each in able(alike, ranks).items()
        }
        grouped = [x for x in rest if sum(n > 1 for n in meshes[x].values()) > 1]
        yield from _short(part, turn, on, memory_bytes, quick)
        again = turn if alike == part else set()
        yield from _short(alike, {*grouped[:1]} - again, on, memory_bytes, quick)


def _able_alone(step: Workload, ranks: int) -> list[str]:
    """Strategies that can run a step, and all of it on one rank, too."""
    alone = able(step, 1)
    return [name for name in able(step, ranks) if name in alone]


def _calls(step: Workload, ranks: int, on: Device, name: str) -> int:
    """Calls of the host for messages."""
    messages = work(step, load(name), ranks, 0, device=on, known=LEARNT[on]).messages
    return sum(host_calls(message.op) * times for message, times in messages.items())


def _short(
    step: Workload,
    names: Iterable[str],
    on: Device,
    memory_bytes: float,
    most_flops: float = math.inf,
) -> Iterable[GateCheck]:
    """The step under each strategy, but for those of seconds, or that a GPU cannot hold: every rank
    does one all by itself."""
    for name in sorted(names):
        told = math.isfinite(memory_bytes)
        done = work(step, load(name), 1, 0, with_memory=told, device=on, known=LEARNT[on])
        fits = done.memory is None or done.memory.peak <= STEP_OF_MEMORY * memory_bytes
        operations = sum(kernel.flops * times for kernel, times in done.kernels.items())
        if fits and operations <= min(MOST_FLOPS[on], most_flops):
            yield GateCheck(workload=step, strategy=name)


def _kernels(workload: Workload, ranks: int, most_bytes: float) -> Iterable[TimedKernel]:
    """Calls under two strategies that can run, attention in one kernel and in its own products."""
    strategies = able(workload, ranks).values()
    for keeps_scores in (False, True):
        for strategy in [each for each in strategies if each.keeps_scores == keeps_scores][:1]:
            yield from calls_on_gpu(workload, strategy, ranks, most_bytes)


def _transfer(
    op: Op, sent_bytes: int, ranks: int, between: TimedKernel | None = None, in_a_row: int = 1
) -> TimedTransfer:
    """A transfer of float32 in which each rank sends about so many bytes, ranks alike, and so many
    of which follow each other, as shifts of a ring do."""
    per_other = max(1, sent_bytes // 4 // (ranks - 1))
    elements = {
        "all_to_all": per_other * (ranks - 1),
        "all_gather": per_other,
        "reduce_scatter": per_other,
        "all_reduce": max(1, sent_bytes // 4 * ranks // (2 * (ranks - 1))),
        "p2p": max(1, sent_bytes // 4),
    }[op]
    held = [elements] * ranks
    return TimedTransfer(op=op, elements=held, dtype="float32", between=between, in_a_row=in_a_row)
