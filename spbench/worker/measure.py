"""One rank's measurement of a case: memory and bytes, warm-up, timed and silent steps in turn.

Instruments never share a pass with the clock.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from spbench.comm.group import Group, ShareOfGroup
from spbench.layers.attention import KernelsSeen
from spbench.model.inputs import Inputs
from spbench.strategies.base import Strategy
from spbench.worker import memory
from spbench.worker.machine_load import Machine
from spbench.worker.observer import Observer
from spbench.worker.sampling import sample
from spbench.worker.step import Step
from spbench.worker.timer import WINDOW, Stopwatch
from spbench.worker.turn_client import TURN_S
from spbench.workload.case import Case, MeasurementBudget
from spbench.workload.traffic import by_call, by_op, by_phase


def measure(case: Case, strategy: Strategy, group: Group, observer: Observer) -> dict[str, Any]:
    """Fields of the rank's Sample, but for those that are in ``observer.times``."""
    if group.device.type == "cuda":
        torch.cuda.empty_cache()  # what the gate left behind is not the step's
    with observer.phase("memory"):
        whole = Step(
            case.workload, strategy, group.transports, group.device, seed=None, observer=observer
        )
        inputs, cotangent = whole.random_inputs()

        def step() -> None:
            whole(inputs, cotangent)

        already_there = [*whole.model.parameters(), *inputs.tensors, cotangent]
        memory_and_bytes = _memory_and_bytes(step, already_there, group, observer)
    slowed = observer.timed(step)
    return memory_and_bytes | _time(slowed, whole, inputs, case.budget, group, observer)


def _time(
    step: Callable[[], None],
    whole: Step,
    inputs: Inputs,
    budget: MeasurementBudget,
    group: Group,
    observer: Observer,
) -> dict[str, Any]:
    """Warm-up, then both passes; a share has one pass, since it never sends."""
    watch = Stopwatch(group=group, now_s=observer.times.now_s)
    is_share = isinstance(group, ShareOfGroup)
    both = budget.silent and not is_share
    with observer.phase("warm-up"):
        warmup = watch.warm_up(step, budget)
        if both:
            with whole.silenced(), observer.times.step(group.device):
                step()

    with observer.phase("timed and silent"):
        typical_ms = statistics.median(warmup[-WINDOW:])
        machine = Machine(group)

        def timed(steps: int) -> list[float]:
            if observer.turns is not None:
                with machine.elsewhere():
                    observer.turns.take()
            times = watch.time(step, steps)
            machine.look()
            _check_finite(inputs)
            return times

        def silent(steps: int) -> list[float]:
            with whole.silenced():
                times = watch.time(step, steps)
            _check_finite(inputs)
            return times

        block_s = math.inf if observer.turns is None else TURN_S
        times = sample(timed, silent if both else None, group.largest, budget, typical_ms, block_s)
        conditions = machine.seen()
    observer.times.steps_s += watch.spent_s
    return {
        "warmup": len(warmup) + 2,  # with the two before the clock
        "step_ms": None if is_share else times.timed_ms,
        "compute_ms": times.timed_ms if is_share else times.silent_ms or None,
        "stopped_by": times.stopped_by,
        "conditions": conditions,
    }


def _memory_and_bytes(
    step: Callable[[], None], already_there: list[Tensor], group: Group, observer: Observer
) -> dict[str, Any]:
    """The memory and kernels of one step and, but for a share, the bytes that it sends."""
    with observer.times.step(group.device), KernelsSeen() as kernels:
        step()  # every kind of transfer and kernel once, before memory is read
    group.transports.reset()
    with observer.times.step(group.device):
        peaks = memory.measure(step, already_there, group.device)
    seen = peaks | {"attention_kernel": "+".join(kernels.names)}
    if isinstance(group, ShareOfGroup):
        return seen
    sent = group.transports.sent()
    return seen | {
        "sent_by_phase": by_phase(sent),
        "sent_by_op": by_op(sent),
        "collectives": by_call(group.transports.calls()),
    }


def _check_finite(inputs: Inputs) -> None:
    """Raises FloatingPointError: NaN changes what products cost, so times would mean nothing."""
    grad = inputs.x.grad
    if grad is not None and not grad.isfinite().all():
        raise FloatingPointError("the timed steps gave gradients that are not finite")
