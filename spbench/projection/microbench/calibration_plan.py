"""Which kernels and transfers are timed to calibrate a machine: those that the catalogue asks for.

Shapes come from dry runs of a few small workloads; what differs little is one.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import final

from pydantic import Field
from scipy.stats import trim_mean

from spbench.errors import Failure
from spbench.projection.costmodel.message_cost import host_calls
from spbench.projection.costmodel.operations import label_of
from spbench.projection.dryrun.trace import work
from spbench.projection.microbench.timed_calls import (
    LEARNT,
    MOST_BYTES,
    MOST_FLOPS,
    able,
    calls_of,
    calls_of_catalogue,
    calls_on_gpu,
    calls_on_gpu_of_catalogue,
    distinct,
    shallow,
    tiny,
)
from spbench.results.link_report import LinkTimes, LinkTiming
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


# What the ranks of a calibration timed, as one time for each part of the plan.

LEAST_MS = 1e-3


@final
@dataclass(frozen=True, kw_only=True)
class TransferTime:
    """One transfer of a plan, as all ranks timed it."""

    transfer: TimedTransfer
    sent_bytes: float
    seconds: float
    """What it adds to the slowest rank's kernel; where transfers follow each other, its time."""


@final
@dataclass(frozen=True, kw_only=True)
class TimedCollective:
    """One operation on so many ranks."""

    ranks: int
    points: Sequence[tuple[float, float]]
    """Bytes that a rank sends, and seconds."""


@final
@dataclass(frozen=True, kw_only=True)
class Timed:
    """A plan, and one time of all ranks for each of its parts."""

    plan: CalibrationPlan
    kernels_s: Sequence[float]
    transfers: Sequence[TransferTime]
    steps_s: Sequence[float]
    shares_s: Sequence[float]
    launch_s: float
    together_s: Sequence[float] = ()
    """Seconds of steps that all ranks do together; empty where they were not timed."""
    cpu_gflop_per_s: float | None = None
    """GFLOP/s of a fixed product at the speed at which kernels took that long; None: a GPU."""

    @classmethod
    def of(cls, plan: CalibrationPlan, by_rank: Sequence[LinkTimes]) -> Timed:
        """All ranks' times: the mean over ranks of kernels and steps, which they compute side by
        side; of transfers what they add to the slowest rank's kernel, or where they follow each
        other the slowest rank's time."""
        transfers = list(zip(*(times.timings for times in by_rank), strict=True))
        return cls(
            plan=plan,
            kernels_s=_means(times.kernels_s for times in by_rank),
            transfers=list(map(_transfer_time, plan.transfers, transfers)),
            steps_s=_means(times.steps_s for times in by_rank),
            shares_s=_means(times.shares_s for times in by_rank),
            together_s=_means(times.together_s for times in by_rank),
            launch_s=max(times.launch_s or 0.0 for times in by_rank),
            cpu_gflop_per_s=by_rank[0].cpu_gflop_per_s,
        )

    def collective(self, op: Op) -> TimedCollective:
        """All sizes of an operation; of a shift the slower time, alone or in a row."""
        slowest: dict[float, float] = {}
        for each in self.transfers:
            if each.transfer.op == op:
                slowest[each.sent_bytes] = max(slowest.get(each.sent_bytes, 0.0), each.seconds)
        return TimedCollective(ranks=self.plan.ranks, points=[*slowest.items()])

    def kernels(self, kind: str) -> list[tuple[TimedKernel, float]]:
        """Kernels of a kind, and their seconds."""
        pairs = zip(self.plan.kernels, self.kernels_s, strict=True)
        return [(kernel, seconds) for kernel, seconds in pairs if kernel.kind == kind]


def _means(by_rank: Iterable[Sequence[float]]) -> list[float]:
    return [statistics.fmean(each) for each in zip(*by_rank, strict=True)]


def _transfer_time(transfer: TimedTransfer, of_ranks: Sequence[LinkTiming]) -> TransferTime:
    if transfer.between is None:
        took_ms = max(statistics.median(each.ms) for each in of_ranks)
    else:
        took_ms = usual([*_added_ms(of_ranks)])
    return TransferTime(
        transfer=transfer,
        sent_bytes=max(each.sent_bytes for each in of_ranks),
        seconds=max(took_ms, LEAST_MS) / 1e3,
    )


def usual(rounds: Sequence[float]) -> float:
    """The mean of rounds without a fifth at either end, of fewer than five the median. Single calls
    take a tenth to three times their mean, of which a step has many: a median is too little."""
    return float(trim_mean(rounds, 0.2)) if len(rounds) >= 5 else statistics.median(rounds)


def _added_ms(of_ranks: Sequence[LinkTiming]) -> Iterable[float]:
    """What a transfer adds to the slowest rank's kernel, round by round."""
    kernels = list(zip(*(each.kernel_ms for each in of_ranks), strict=True))
    added = zip(*(each.ms for each in of_ranks), strict=True)
    for kernel_ms, ms in zip(kernels, added, strict=True):
        yield statistics.fmean(kernel_ms) + statistics.fmean(ms) - max(kernel_ms)
