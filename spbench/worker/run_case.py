"""One rank's life in one case: the gate, and behind it the measurements.

A case whose gate fails is not timed.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from spbench.comm.group import Group, ShareOfGroup
from spbench.comm.threaded import ThreadRendezvous, ThreadTransport, run_rank_threads
from spbench.comm.transport import Transports
from spbench.results.heartbeat import Heartbeat
from spbench.results.sample import Sample
from spbench.strategies.base import Strategy
from spbench.strategies.registry import load
from spbench.worker.fault_injection import Fault
from spbench.worker.gate import GateResult, run_gate
from spbench.worker.measure import measure
from spbench.worker.observer import PhaseTimes
from spbench.worker.reference import Reference, one_device, workload_to_compare
from spbench.worker.turn_client import TurnClient
from spbench.workload.case import Case
from spbench.workload.traffic import by_phase, count


def refused(case: Case, rank: int) -> Sample | None:
    """Of a case that its strategy declines: it is no rank's to try, whoever asks for it."""
    strategy = load(case.strategy)
    why_not = strategy.misfit(case.workload) or strategy.why_not(case.workload, case.ranks)
    if why_not is None:
        return None
    return Sample(rank=rank, status="skipped", reason=why_not)


def run_case(
    case: Case,
    group: Group,
    fault: Fault | None = None,
    pulse: Heartbeat | None = None,
    turns: TurnClient | None = None,
) -> Sample:
    """The case's sample, with what the rank knows of its device and libraries."""
    torch.manual_seed(case.seed + group.rank)
    sample = _live(case, group, fault, pulse, turns)
    is_cuda = group.device.type == "cuda"
    versions = {"torch": str(torch.__version__)}
    if is_cuda:
        nccl = ".".join(map(str, torch.cuda.nccl.version()))
        versions |= {"cuda": torch.version.cuda or "", "nccl": nccl}
    return sample.model_copy(
        update={
            "host": socket.gethostname(),
            "device_name": torch.cuda.get_device_name(group.device) if is_cuda else "cpu",
            "versions": versions,
            "environment": {
                name: os.environ.get(name, "") for name in load(case.strategy).environment
            }
            | ({} if fault is None else fault.environment),
        }
    )


def _live(
    case: Case,
    group: Group,
    fault: Fault | None = None,
    pulse: Heartbeat | None = None,
    turns: TurnClient | None = None,
    now_s: Callable[[], float] = time.perf_counter,
) -> Sample:
    """The whole life. Raises what the workload raises; a failed gate is a Sample."""
    began_s = time.time()
    pulse = pulse or Heartbeat()
    ledger = PhaseTimes(now_s, pulse.phase, pulse.beat)
    transports = watched(group, pulse, fault)
    strategy = load(case.strategy)
    with ledger.phase("gate"):
        outcome, gated_on = _gate(case, strategy, group, transports, ledger, fault)
    proof: dict[str, Any] = {
        "rank": group.rank,
        "backend": group.backend,
        "began_s": began_s,
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
    found = measure(case, strategy, group, transports, ledger, fault, turns)
    found |= {"phases_s": ledger.phases_s, "steps_s": ledger.steps_s}
    return Sample(status="ok", **proof, **found)


def _predicted(case: Case, strategy: Strategy, group: Group) -> dict[str, int]:
    """This rank's bytes; for a share, which has but one rank, the largest over all."""
    transfers = strategy.traffic(case.workload, group.size)
    ranks = range(group.size) if isinstance(group, ShareOfGroup) else [group.rank]
    every = [by_phase(count(transfers, rank)) for rank in ranks]
    return {phase: max(one[phase] for one in every) for phase in every[0]}


def watched(group: Group, pulse: Heartbeat, fault: Fault | None = None) -> Transports:
    """The transports of this rank. Steps, transfers and meetings show in its pulse, but for the
    collective too many of a fault; steps meet its fault."""

    def on_step() -> None:
        pulse.step()
        if fault is not None:
            fault.strike(group.rank, f"step{pulse.steps - 1}", lambda: group.gather_text(""))

    for transport in (group.transports.strategy, group.transports.gradients):
        transport.on_transfer = pulse.transfer
    group.on_meeting = pulse.transfer
    return Transports(
        strategy=group.transports.strategy, gradients=group.transports.gradients, on_step=on_step
    )


def _gate(
    case: Case,
    strategy: Strategy,
    group: Group,
    transports: Transports,
    ledger: PhaseTimes,
    fault: Fault | None,
) -> tuple[GateResult, str]:
    """The outcome of this rank, and the name of the workload that was compared."""
    if isinstance(group, ShareOfGroup):
        transports.on_step()
        twin = case.workload.reduced(group.size)
        reference = one_device(twin, torch.device("cpu"), seed=case.seed, ledger=ledger)
        return _gate_by_threads(strategy, group.size, reference, ledger), twin.name
    workload = workload_to_compare(case.workload, group)
    reference = one_device(workload, group.device, seed=case.seed, ledger=ledger)

    def tampered(output: Tensor) -> Tensor:
        return output if fault is None else fault.tampered(group.rank, output)

    outcome = run_gate(strategy, transports, group.device, reference, ledger, tampered)
    return outcome, workload.name


def _gate_by_threads(
    strategy: Strategy, ranks: int, reference: Reference, ledger: PhaseTimes
) -> GateResult:
    """All the ranks of a share, as threads on the CPU; the worst of their outcomes."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # ranks are threads already
    second = ThreadRendezvous(ranks)

    def gate(transport: ThreadTransport) -> GateResult:
        transports = Transports(
            strategy=transport, gradients=ThreadTransport(transport.rank, second)
        )
        mine = ledger if transport.rank == 0 else None  # the threads' time is one time
        return run_gate(strategy, transports, torch.device("cpu"), reference, mine)

    outcomes = run_rank_threads(ranks, gate)
    torch.set_num_threads(threads)
    wrong = [outcome for outcome in outcomes if outcome.why_wrong()]
    return max(wrong or outcomes, key=lambda outcome: outcome.worst.excess)
