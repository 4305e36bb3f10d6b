"""One rank's life in one case: gate, memory, warm-up, then timed and silent steps in turn.

Instruments never share a pass with the clock. A case whose gate fails is not timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch

from spbench.bench import memory
from spbench.bench.clock import Stopwatch
from spbench.bench.gate import Outcome, run_gate
from spbench.bench.reference import Reference, one_device
from spbench.bench.step import Links, Step
from spbench.bench.twin import comparable
from spbench.comm.group import Group, ShareOfGroup
from spbench.comm.threads import Meeting, Threads, run_ranks
from spbench.comm.transfer import by_op, by_phase, count
from spbench.model.inputs import Inputs
from spbench.results.sample import Sample
from spbench.strategies.base import Strategy
from spbench.strategies.registry import load
from spbench.workload.case import Case
from spbench.workload.shards import shard_sizes

BLOCKS = 5
"""Timed and silent steps alternate in so many blocks: a machine that drifts drifts for both."""


def live_case(case: Case, group: Group, now_s: Callable[[], float] = time.perf_counter) -> Sample:
    """The whole life. Raises what the workload raises; a failed gate is a Sample."""
    strategy = load(case.strategy)
    outcome, gated_on = _gate(case, strategy, group)
    proof: dict[str, Any] = {
        "rank": group.rank,
        "backend": group.backend,
        "gated_on": gated_on,
        "output_error": outcome.output.relative,
        "gradient_error": None if outcome.gradient is None else outcome.gradient.relative,
        "tolerance": outcome.worst.tolerance,
        "predicted_by_phase": _predicted(case, strategy, group),
    }
    wrong = outcome.why_wrong()
    (anyone_wrong,) = group.largest([float(wrong is not None)])
    if anyone_wrong:
        reason = wrong or "another rank's result is wrong"
        failed_at_s = time.time() if wrong else None
        return Sample(status="wrong_result", reason=reason, failed_at_s=failed_at_s, **proof)
    return Sample(status="ok", **proof, **_measure(case, strategy, group, now_s))


def _measure(
    case: Case, strategy: Strategy, group: Group, now_s: Callable[[], float]
) -> dict[str, Any]:
    if group.device.type == "cuda":
        torch.cuda.empty_cache()  # what the gate left behind is not the step's
    links = Links(strategy=group.strategy, gradients=group.gradients)
    whole_step = Step(case.workload, strategy, links, group.device, seed=None)
    inputs, cotangent = whole_step.random_inputs()

    def step() -> None:
        whole_step(inputs, cotangent)

    step()  # every kind of transfer and kernel once, before memory is read
    links.reset()
    there = [*whole_step.model.parameters(), *inputs.tensors, cotangent]
    found = asdict(memory.measure(step, there, group.device))
    sent = links.sent()
    watch = Stopwatch(group=group, now_s=now_s)
    warmup = watch.warm_up(step, case.effort)
    iterations = watch.iterations(warmup, case.effort)
    found["warmup"] = len(warmup) + 2
    if isinstance(group, ShareOfGroup):
        found["compute_ms"] = watch.time(step, iterations)
        _check_finite(inputs)
        return found
    with whole_step.silenced():
        step()
    found |= {"step_ms": [], "compute_ms": []}
    for block in shard_sizes(iterations, min(BLOCKS, iterations)):
        found["step_ms"] += watch.time(step, block)
        with whole_step.silenced():
            found["compute_ms"] += watch.time(step, block)
        _check_finite(inputs)
    return found | {"sent_by_phase": by_phase(sent), "sent_by_op": by_op(sent)}


def _predicted(case: Case, strategy: Strategy, group: Group) -> dict[str, int]:
    """This rank's bytes; for a share, which has but one rank, the largest over all."""
    transfers = strategy.traffic(case.workload, group.size)
    ranks = range(group.size) if isinstance(group, ShareOfGroup) else [group.rank]
    every = [by_phase(count(transfers, rank)) for rank in ranks]
    return {phase: max(one[phase] for one in every) for phase in every[0]}


def _check_finite(inputs: Inputs) -> None:
    """NaN changes what products cost: a time of such steps is no time."""
    grad = inputs.x.grad
    if grad is not None and not grad.isfinite().all():
        raise FloatingPointError("the timed steps gave gradients that are not finite")


def _gate(case: Case, strategy: Strategy, group: Group) -> tuple[Outcome, str]:
    """The outcome of this rank, and the name of the workload that was compared."""
    if isinstance(group, ShareOfGroup):
        twin = case.workload.reduced(group.size)
        reference = one_device(twin, torch.device("cpu"), seed=case.seed)
        return _gate_by_threads(strategy, group.size, reference), twin.name
    workload = comparable(case.workload, group)
    links = Links(strategy=group.strategy, gradients=group.gradients)
    reference = one_device(workload, group.device, seed=case.seed)
    return run_gate(strategy, links, group.device, reference), workload.name


def _gate_by_threads(strategy: Strategy, ranks: int, reference: Reference) -> Outcome:
    """All the ranks of a share, as threads on the CPU; the worst of their outcomes."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # ranks are threads already
    second = Meeting(ranks)

    def gate(transport: Threads) -> Outcome:
        links = Links(strategy=transport, gradients=Threads(transport.rank, second))
        return run_gate(strategy, links, torch.device("cpu"), reference)

    outcomes = run_ranks(ranks, gate)
    torch.set_num_threads(threads)
    wrong = [outcome for outcome in outcomes if outcome.why_wrong()]
    return max(wrong or outcomes, key=lambda outcome: outcome.worst.excess)
