"""One rank's measurement of a case: memory and bytes, warm-up, timed and silent steps in turn.

Instruments never share a pass with the clock. A silent pass that runs out of memory leaves the
time of computation blank, and fails nothing.
"""

import statistics
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, final

import torch
from torch import Tensor

from spbench.comm.group import Group, ShareOfGroup
from spbench.layers.dispatch_modes import KernelsSeen
from spbench.strategies.base import Plan
from spbench.worker import memory
from spbench.worker.machine_load import Machine
from spbench.worker.observer import Observer
from spbench.worker.sampling import sample
from spbench.worker.silent_pass import SilentPass
from spbench.worker.step import Step, state_bytes, state_tensors
from spbench.worker.step_graph import replayed
from spbench.worker.step_proof import Expected, StepProof
from spbench.worker.timer import WINDOW, Stopwatch
from spbench.workload.case import Case, MeasurementBudget
from spbench.workload.traffic import by_axis, by_call, by_op, by_phase, merged

SENDS_ITSELF = "its package sends by itself, which nothing silences"
"""Why a step of another package's code has no time without communication."""
MORE_ON_THE_WIRE = "its reduce-scatters are all-reduces inside gloo, which send them twice"
"""spbench's own are made of sends and receives on gloo (``comm/nccl_gloo.py``)."""
IS_CAPTURED = "the step was captured as one CUDA graph, with its transfers, which nothing silences"
"""Why a replayed step has no time without communication."""


def measure(
    case: Case, plan: Plan, group: Group, observer: Observer, expected: Expected | None = None
) -> dict[str, Any]:
    """Memory and bytes, warm-up, timed and silent steps of one rank.

    Parameters
    ----------
    case
        Its seed and its budget count here.
    plan
        What runs.
    group, observer
        The ranks, and this one's instruments.
    expected
        One device's step of the same workload; None where none could run it whole.

    Returns
    -------
    dict
        Fields of the rank's Sample, but for those that are in ``observer.times``.
    """
    if group.device.type == "cuda":
        torch.cuda.empty_cache()  # what the gate left behind is not the step's
    with observer.phase("memory"):
        device, seed = group.device, case.seed
        whole = Step(plan, group.transports, device, seed=seed, observer=observer)
        whole.run_as(case.execution)
        inputs, cotangent = whole.seeded_inputs()
        proof = StepProof(whole, inputs, cotangent, group, observer, expected)

        def step() -> None:
            proof.forget()
            proof.see(whole(inputs, cotangent))

        # Alive before the step: their storages count from its beginning.
        already_there = [*whole.weights.values(), *inputs.tensors, cotangent]
        with KernelsSeen() as kernels:  # every kind of transfer and kernel, before memory is read
            wrong = proof.first(step)
        if wrong is not None:
            return wrong
        seen: dict[str, Any] = {"attention_kernel": "+".join(kernels.names)}
        seen["optimizer_bytes"] = state_bytes(whole.optimizer)
        proof.flip()
        seen |= _memory_and_bytes(step, whole, proof, already_there, observer)
        wrong = proof.second()
    if wrong is not None:
        return seen | wrong
    # A planted slow rank is slow under the clock alone; every other step is as it is.
    slowed, is_graph = observer.timed(step), case.execution == "graph"
    with replayed(whole, inputs, cotangent, observer) if is_graph else nullcontext():
        seen |= _time(slowed, whole, proof, case.budget, group, observer)
        with observer.phase("proof"), whole.uncaptured():
            return seen | proof.last(slowed)


def _time(
    step: Callable[[], None],
    whole: Step,
    proof: StepProof,
    budget: MeasurementBudget,
    group: Group,
    observer: Observer,
) -> dict[str, Any]:
    """Warm-up, then both passes; a share has one pass, since it never sends."""
    watch = Stopwatch(group=group, now_s=observer.times.now_s)
    is_share = isinstance(group, ShareOfGroup)
    silent = SilentPass(whole=whole, one_step=step, group=group, watch=watch, proof=proof)
    silent.why_none = _why_not_silent(whole, proof)
    both = budget.silent and not is_share and not silent.why_none
    with observer.phase("warm-up"):
        warmup = watch.warm_up(step, budget)
        is_warm = watch.is_warm(warmup)
        with whole.uncaptured():
            proof.settle(step)
        if both:
            silent.prove()

    with observer.phase("timed and silent"):
        timed = TimedPass(step, watch, Machine(group), proof)
        look = partial(timed.machine.look, is_silent=True)
        also = partial(silent.time, look=look) if both else None
        # The last few steps: how long a step takes once it is warm decides how many fit.
        typical_ms = statistics.median(warmup[-WINDOW:])
        times = sample(timed.time, also, group.largest, budget, typical_ms)
        conditions = timed.machine.seen()
        if both:
            silent.prove()
    observer.times.steps_s += watch.spent_s
    return {
        "warmup": len(warmup) + 2,  # with the two before the clock
        "steady": is_warm,
        "step_ms": None if is_share else times.timed_ms,
        "compute_ms": times.timed_ms if is_share else silent.unless_given_up(times.silent_ms),
        "compute_note": silent.why_none,
        "bubble": None if whole.plan.stages is None else float(whole.plan.stages.bubble),
        "issue_ms": timed.issue_ms if group.device.type == "cuda" else None,
        "stopped_by": times.stopped_by,
        "conditions": conditions,
    }


def _why_not_silent(whole: Step, proof: StepProof) -> str:
    """Why no step can go without communication; blank where one can."""
    if whole.captured is not None:
        return IS_CAPTURED
    if not whole.plan.group.sends_itself:
        return ""
    first = proof.first_witness
    scatters = 0 if first is None else by_op(first.sent)["reduce_scatter"]
    is_more = scatters and proof.group.backend == "gloo"
    return f"{SENDS_ITSELF}; {MORE_ON_THE_WIRE}" if is_more else SENDS_ITSELF


@final
@dataclass
class TimedPass:
    """Steps as they are; behind each block a look at the machine, and at what the steps did."""

    one_step: Callable[[], None]
    watch: Stopwatch
    machine: Machine
    proof: StepProof
    issue_ms: list[float] = field(default_factory=list)
    """Milliseconds until the call of each step returned."""

    def time(self, steps: int) -> list[float]:
        """Takes steps against the clock; returns this rank's milliseconds of each."""
        self.proof.begin()
        times, issued = self.watch.time(self.one_step, steps)
        self.machine.look()
        self.issue_ms += issued
        self.proof.look(steps)
        return times


def _memory_and_bytes(
    step: Callable[[], None],
    whole: Step,
    proof: StepProof,
    already_there: list[Tensor],
    observer: Observer,
) -> dict[str, Any]:
    """The memory of one step and, but for a share, the bytes that it sends."""
    group = proof.group
    group.transports.reset()
    with observer.times.step(group.device):
        # Moments of the optimizer exist since the first step: they are there before this one, too.
        kept = state_tensors(whole.optimizer)
        resized = () if whole.shared is None else whole.shared.gathered
        peaks = memory.measure(step, [*already_there, *kept], group.device, [*resized])
    if isinstance(group, ShareOfGroup):
        return peaks
    first = proof.first_witness
    assert first is not None, "the first step comes before"
    sent = merged(group.transports.sent(), first.sent)
    return peaks | {
        "sent_by_phase": by_phase(sent),
        "sent_by_op": by_op(sent),
        "sent_by_axis": by_axis(sent),
        "collectives": by_call(first.calls + Counter(group.transports.calls())),
    }
