"""Steps of ranks that are real gloo processes, as torch's own instruments see them."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._pytree import tree_leaves

from spbench.comm.group import ProcessGroup
from spbench.comm.kv_store import MeetingFile
from spbench.comm.transport import Transports
from spbench.layers.watching import WatchingMode
from spbench.projection.kernel_of import kernel_of
from spbench.projection.work import Kernel
from spbench.strategies.registry import in_mesh
from spbench.worker.memory import measure
from spbench.worker.optimizer import state_tensors
from spbench.worker.step import Step
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
    """By the events of torch's allocator."""
    tracked_bytes: int
    """By the storages that operations return, as a run measures it."""


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


def allocated_peak(step: Any, *given: Any) -> int:
    """Most bytes that torch's CPU allocator had given out in a step and not taken back."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        step(*given)
    events = seen.profiler.kineto_results.events()
    memory = [each for each in events if each.name() == "[memory]"]
    now = most = 0
    for event in sorted(memory, key=lambda event: event.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most


def run_steps(rank: int, ranks: int, folder: str, cases: list[Case]) -> None:
    """A step of each case on this rank; writes what was sent, computed and allocated."""
    torch.set_num_threads(1)
    place = Path(folder)
    meeting = MeetingFile(path=place / "meeting", rank=rank, ranks=ranks)
    group = ProcessGroup(torch.device("cpu"), 60.0, meeting=meeting)
    group.warm()
    seen = [_seen(group, in_mesh(strategy, mesh), work) for strategy, mesh, work in cases]
    (place / f"{rank}.pickle").write_bytes(pickle.dumps(seen))
    group.close()


def _seen(group: ProcessGroup, strategy: Any, work: Workload) -> Seen:
    transports = group.transports
    step = Step(work, strategy, transports, group.device)
    inputs, cotangent = step.seeded_inputs()
    step(inputs, cotangent)  # the first makes the optimizer's state

    def forget() -> list[torch.Tensor]:
        step.model.zero_grad(set_to_none=True)
        inputs.forget_gradients()
        kept = [*step.model.parameters(), *step.model.buffers(), *state_tensors(step.optimizer)]
        return [*kept, *inputs.tensors, cotangent]

    forget()
    transports.reset()
    with Operations(transports) as operations:
        step(inputs, cotangent)
    sent = transports.sent()
    there = sum(each.untyped_storage().nbytes() for each in forget())
    peak = there + allocated_peak(step, inputs, cotangent)
    tracked = measure(lambda: step(inputs, cotangent), forget(), group.device)
    return Seen(sent, products(operations.kernels), peak, tracked["peak_allocated_bytes"])
