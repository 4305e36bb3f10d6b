"""Steps of ranks that are real gloo processes, by torch's instruments, beside their dry runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from helpers.allocator_events import count_on_every_thread, growth
from torch.utils._pytree import tree_leaves

from spbench.comm.group import ProcessGroup
from spbench.comm.kv_store import MeetingFile
from spbench.comm.transport import Transports
from spbench.layers.dispatch_modes import WatchingMode
from spbench.projection.dryrun.meta_ops import kernel_of
from spbench.projection.dryrun.trace import work
from spbench.projection.dryrun.work import Kernel, Message
from spbench.strategies.base import Strategy
from spbench.strategies.registry import in_mesh
from spbench.worker.step import Step, state_tensors
from spbench.workload.mesh import CaseMesh
from spbench.workload.traffic import Count
from spbench.workload.workload import Workload

Case = tuple[str, CaseMesh, Workload]
"""A strategy, the groups of ranks around it, and what is computed."""
Products = Counter[tuple[Any, ...]]
"""How often each product and attention occurs: kind, shape, operations, phase."""


@dataclass(frozen=True)
class Seen:
    """What a rank's step sent, computed, and held at most."""

    sent: Count
    products: Products
    peak_bytes: int
    """By the events of torch's allocator, in which is what kernels take inside, too."""


def products(kernels: Mapping[Kernel, int]) -> Products:
    """Those of a step's kernels whose operations count."""
    counted: Products = Counter()
    for kernel, times in kernels.items():
        if kernel.kind != "elementwise":
            counted[kernel.kind, kernel.shape, kernel.flops, kernel.phase] += times
    return counted


class Operations(WatchingMode):
    """Notes the kernel of every operation of a real step, in the phase that its transport is in."""

    def __init__(self, transports: Transports) -> None:
        super().__init__()
        self._strategy = transports.strategy
        self.kernels: Counter[Kernel] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        outs = [x for x in tree_leaves(out) if isinstance(x, torch.Tensor)]
        name = func.__name__.partition(".")[0]
        kernel = kernel_of(name, [*args, *(kwargs or {}).values()], outs)
        if kernel is not None:
            self.kernels[replace(kernel, phase=self._strategy._phase)] += 1
        return out


def sent(messages: Mapping[Message, int]) -> Count:
    """Bytes of a dry run's messages by phase, operation and axis."""
    total: Count = {}
    for message, times in messages.items():
        kind = message.phase, message.op, message.axis
        total[kind] = total.get(kind, Fraction(0)) + times * message.sent_bytes
    return total


def run_steps(rank: int, ranks: int, folder: str, cases: list[Case], bound: float) -> None:
    """A step of each case on this rank, and its dry run; writes where these differ, and the peak
    bytes of each step.

    ``bound``: how far a peak may be off, as a fraction.
    """
    torch.set_num_threads(1)
    count_on_every_thread()
    place = Path(folder)
    meeting = MeetingFile(path=place / "meeting", rank=rank, ranks=ranks)
    group = ProcessGroup(torch.device("cpu"), 60.0, meeting=meeting)
    group.warm()
    seen = [_seen(group, in_mesh(name, mesh), workload) for name, mesh, workload in cases]
    group.close()
    wrong = [
        f"rank {rank} of {name} {mesh}, {shape.checkpointing}, {shape.optimizer}: {difference}\n"
        for (name, mesh, shape), real in zip(cases, seen, strict=True)
        for difference in _differences(real, in_mesh(name, mesh), shape, ranks, rank, bound)
    ]
    (place / f"{rank}.txt").write_text("".join(wrong))
    (place / f"{rank}.peaks").write_text(" ".join(str(real.peak_bytes) for real in seen))


def _differences(
    real: Seen, strategy: Strategy, workload: Workload, ranks: int, rank: int, bound: float
) -> Iterator[str]:
    dry = work(workload, strategy, ranks, rank, with_memory=True, device="cpu")
    assert dry.memory is not None
    if sent(dry.messages) != real.sent:
        yield f"sends {sent(dry.messages)}, not {real.sent}"
    told = products(dry.kernels)
    if told != real.products:
        yield f"computes {told - real.products}, not {real.products - told}"
    ratio = dry.memory.peak / real.peak_bytes
    if abs(ratio - 1) > bound:
        yield f"its peak is {ratio:.4f} of the allocator's"


def _seen(group: ProcessGroup, strategy: Strategy, workload: Workload) -> Seen:
    transports = group.transports
    step = Step(strategy.on(workload, group.size), transports, group.device)
    inputs, cotangent = step.seeded_inputs()
    transports.reset()
    with Operations(transports) as operations:
        step(inputs, cotangent)  # the first makes the optimizer's state
    sent = transports.sent()
    peaks = []
    for _ in range(3 if sums_activations(sent) else 1):
        step.model.zero_grad(set_to_none=True)
        inputs.forget_gradients()
        kept = [*step.weights.values(), *step.model.buffers(), *state_tensors(step.optimizer)]
        there = [*kept, *inputs.tensors, cotangent]
        before = sum(each.untyped_storage().nbytes() for each in there)
        peaks.append(before + growth(lambda: step(inputs, cotangent)))
    return Seen(sent, products(operations.kernels), min(peaks))


def sums_activations(sent: Count) -> bool:
    """Whether an activation goes through an all-reduce, which gloo runs on a thread of its own.

    That thread holds the tensor until it is scheduled again, however long after the sum is there:
    the least of several peaks is that of a step whose threads had a core at once.
    """
    return any(op == "all_reduce" and phase != "gradients" for phase, op, _ in sent)
