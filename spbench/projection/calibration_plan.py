"""Which kernels and transfers are timed to calibrate a machine: those that the catalogue asks for.

Shapes come from dry runs of a few small workloads; what differs by less than a quarter is one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import final

from pydantic import Field

from spbench.errors import Failure
from spbench.projection.recorder import timed_calls
from spbench.projection.timed_kernels import distinct, label_of, operations
from spbench.projection.trace import work
from spbench.projection.work import Kernel
from spbench.strategies.base import Strategy
from spbench.strategies.registry import load, places
from spbench.workload.block import Frozen
from spbench.workload.case import Device, GateCheck
from spbench.workload.catalogue import find
from spbench.workload.fields import Dtype
from spbench.workload.timed import TimedKernel, TimedTransfer
from spbench.workload.traffic import OPS, Op
from spbench.workload.workload import DTYPE_BYTES, Workload

WORKLOADS = ("dsp-720m-small", "wan-2.1-1.3b-small", "llama3-8b-small")
"""What shapes are taken from: two axes, one long one with text, and one with a mask. GPUs time
them in their full size, too, which is in bfloat16."""
TINY = 4
"""Positions along each axis of a step that is little but launches."""
MOST_FLOPS: dict[Device, float] = {"cpu": 4e10, "cuda": 4e14}
"""Larger kernels and steps are left out: one would take a second."""
MOST_BYTES: dict[Device, int] = {"cpu": 2**28, "cuda": 2**33}
"""What a kernel reads and writes, at most; larger ones go at the rate of the largest."""
PASSES = tuple(4**i for i in range(5, 13))
"""Elements of passes over memory: 1,024 to 16 Mi."""
BETWEEN = TimedKernel(kind="gemm", shape=[1, 256, 512, 256], dtype="float32")
"""What ranks of a CPU compute between two transfers: a millisecond or two. In a step, too, ranks do
not arrive together, gloo's threads sleep until they are called, and the cores have other work."""
SENT_BYTES = {"cpu": [4**i for i in range(5, 13)], "cuda": [4**i for i in range(5, 15)]}
"""Bytes that a rank sends: 1 KiB to 16 MiB, on a GPU to 256 MiB: a minute over 1 Gbit/s."""


@final
class CalibrationPlan(Frozen):
    """What is timed on one number of ranks."""

    ranks: int
    kernels: list[TimedKernel]
    transfers: list[TimedTransfer]
    steps: list[GateCheck] = Field(default_factory=list)
    """Steps of a few positions and of one block, without messages."""


def plan(ranks: int, on: Device, workloads: Sequence[Workload] = ()) -> CalibrationPlan:
    """The plan for ``ranks``: of these workloads, by default of a few of the catalogue.

    On a CPU all calls of a step are timed. On a GPU, which computes behind the back of the host
    that calls, only products, attentions and passes have times of their own. Small steps tell the
    host's time: on a GPU the smallest do.
    Raises Failure where no product or no attention would be timed.
    """
    full = [name.removesuffix("-small") for name in WORKLOADS] if on == "cuda" else []
    chosen = list(workloads) or [find(name) for name in (*WORKLOADS, *full)]
    found = _calls if on == "cpu" else _kernels
    kernels = [kernel for each in chosen for kernel in found(each, ranks)]
    for kind, what in (("gemm", "product"), ("attention", "attention")):
        if not any(kernel.kind == kind for kernel in kernels):
            names = ", ".join(each.name for each in chosen)
            raise Failure(
                f"{names} on {ranks} ranks: no {what} can be timed, as no strategy can run it or "
                f"each would take seconds or too much memory; add -w {WORKLOADS[0]}"
            )
    dtypes = list(dict.fromkeys(each.dtype for each in chosen))
    passes = [
        TimedKernel(kind="elementwise", shape=[count], dtype=dtype)
        for dtype in dtypes
        for count in PASSES
    ]
    sizes = SENT_BYTES[on] if ranks > 1 else []
    between = BETWEEN if on == "cpu" else None
    transfers = [_transfer(op, sent, ranks, between) for op in OPS for sent in sizes]
    return CalibrationPlan(
        ranks=ranks,
        kernels=[*distinct(kernels), *passes],
        transfers=transfers,
        steps=list(_steps(chosen, ranks, on)),
    )


def _steps(workloads: Sequence[Workload], ranks: int, on: Device) -> Iterable[GateCheck]:
    """A step of each size under the first strategy that can run it, but for those that would take
    seconds: every rank also does one all by itself."""
    tinies = [tiny(each, ranks) for each in workloads]
    for small in (*tinies, *(map(shallow, workloads) if on == "cpu" else ())):
        for name, strategy in [*_able(small, ranks).items()][:1]:
            kernels = work(small, strategy, 1, 0, device=on).kernels
            if sum(kernel.flops * times for kernel, times in kernels.items()) <= MOST_FLOPS[on]:
                yield GateCheck(workload=small, strategy=name)


def _kernels(workload: Workload, ranks: int) -> Iterable[TimedKernel]:
    """Kernels of two strategies that can run: attention in one kernel, and in its own products."""
    able = _able(workload, ranks).values()
    for keeps_scores in (False, True):
        for strategy in [each for each in able if each.keeps_scores == keeps_scores][:1]:
            for kernel in work(workload, strategy, ranks).kernels:
                fits = kernel.moved_bytes <= MOST_BYTES["cuda"]
                if kernel.kind != "elementwise" and fits and kernel.flops <= MOST_FLOPS["cuda"]:
                    yield timed(kernel, workload.dtype)


def _calls(workload: Workload, ranks: int) -> Iterable[TimedKernel]:
    """All calls of every strategy that can run, of one block, and of tiny ones; where some are too
    large, also those of axes halved until none is."""
    least, part = tiny(workload, ranks), shallow(workload)
    calls = _every_call(part, ranks)
    yield from filter(_is_small, [*calls, *_every_call(least, ranks)])
    while not all(map(_is_small, calls)) and part.tokens > least.tokens:
        axes = {axis: max(-(-n // 2), least.axes[axis]) for axis, n in part.axes.items()}
        part = part.model_copy(update={"axes": axes, "batch": 1})
        calls = _every_call(part, ranks)
        if all(map(_is_small, calls)):
            yield from calls


def _every_call(workload: Workload, ranks: int) -> list[TimedKernel]:
    strategies = _able(workload, ranks).values()
    return [call for each in strategies for call in timed_calls(workload, each, ranks)]


def _is_small(call: TimedKernel) -> bool:
    """Whether a CPU is done with it in much less than a second."""
    if call.kind == "elementwise":
        return 2 * call.shape[0] * DTYPE_BYTES[call.dtype] <= MOST_BYTES["cpu"]
    return operations(label_of(call), (*call.shape,)) <= MOST_FLOPS["cpu"]


def _able(workload: Workload, ranks: int) -> dict[str, Strategy]:
    """The strategies that can run, by name."""
    every = {name: load(name) for name in places()}
    return {
        name: strategy
        for name, strategy in every.items()
        if (strategy.misfit(workload) or strategy.why_not(workload, ranks)) is None
    }


def shallow(workload: Workload) -> Workload:
    """The workload with one block of each stack."""
    return workload.with_depths([1] * len(workload.parts))


def tiny(workload: Workload, ranks: int) -> Workload:
    """Leaves so few positions, but one for each rank, that a step of it is little but launches."""
    axes = {axis: min(length, max(TINY, ranks)) for axis, length in workload.axes.items()}
    return shallow(workload).model_copy(update={"axes": axes, "batch": 1})


def timed(kernel: Kernel, dtype: Dtype) -> TimedKernel:
    """What a rank times for a kernel of a step."""
    return TimedKernel(
        kind=kernel.kind,
        shape=list(kernel.shape),
        dtype=dtype,
        is_masked=kernel.is_masked,
        is_backward=kernel.is_backward,
    )


def _transfer(
    op: Op, sent_bytes: int, ranks: int, between: TimedKernel | None = None
) -> TimedTransfer:
    """A transfer of float32 in which each rank sends about so many bytes, ranks alike."""
    per_other = max(1, sent_bytes // 4 // (ranks - 1))
    elements = {
        "all_to_all": per_other * (ranks - 1),
        "all_gather": per_other,
        "reduce_scatter": per_other,
        "all_reduce": max(1, sent_bytes // 4 * ranks // (2 * (ranks - 1))),
        "p2p": max(1, sent_bytes // 4),
    }[op]
    elements_of = [elements] * ranks
    return TimedTransfer(op=op, elements=elements_of, dtype="float32", between=between)
