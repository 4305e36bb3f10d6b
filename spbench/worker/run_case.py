"""One rank's life in one case: the gate, and behind it the measurements; or the gate alone.

A case whose gate fails is not timed. ``spbench verify`` runs the gate alone, over many shapes.
"""

import os
import socket
import time
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch

from spbench.comm.group import Group, ShareOfGroup
from spbench.comm.threaded import ThreadRendezvous, ThreadTransport, run_rank_threads
from spbench.comm.transport import Transports
from spbench.errors import or_none
from spbench.results.hand_over import Checked, Sample
from spbench.results.machine import numa_binding
from spbench.results.variables import of_a_rank, shown
from spbench.strategies.base import Plan
from spbench.strategies.registry import in_mesh
from spbench.worker.gate import GateResult, run_gate
from spbench.worker.measure import measure
from spbench.worker.observer import Observer
from spbench.worker.reference import Reference, one_device, workload_to_compare
from spbench.worker.step_proof import Expected
from spbench.worker.witness import why_silent_differs
from spbench.workload.case import Case, Execution, GateCheck
from spbench.workload.traffic import by_axis, by_busiest, by_phase, count


def run_case(case: Case, group: Group, observer: Observer, asked: Collection[str] = ()) -> Sample:
    """This rank's sample. A failed gate is a sample, too; other errors are raised. ``asked``: names
    of the variables that were set for the strategy."""
    strategy = in_mesh(case.strategy, case.mesh)
    why_not = strategy.declines(case.workload, case.ranks)
    if why_not is not None:
        return Sample(rank=group.rank, status="skipped", reason=why_not)
    case = case.model_copy(update={"workload": strategy.flattened(case.workload)})
    plan = strategy.on(case.workload, case.ranks)
    # For what may be drawn at random in a step: no two ranks draw the same.
    torch.manual_seed(case.seed + group.rank)
    planted = {} if observer.fault is None else observer.fault.environment
    environment = {name: shown(name, os.environ.get(name, "")) for name in asked} | planted
    facts = _facts(group.device) | {"environment": environment}
    facts["versions"] |= {"vendor": strategy.origin if plan.group.sends_itself else ""}
    facts["variables"] = of_a_rank(os.environ)
    return _gate_and_measure(case, plan, group, observer).model_copy(update=facts)


def _facts(device: torch.device) -> dict[str, Any]:
    """What the rank knows of its device and libraries."""
    name, numa, versions = "cpu", "", {"torch": str(torch.__version__)}
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        nccl = ".".join(map(str, torch.cuda.nccl.version()))
        numa = or_none(numa_binding) or ""
        versions |= {"cuda": torch.version.cuda or "", "nccl": nccl}
    return {"host": socket.gethostname(), "device_name": name, "numa": numa, "versions": versions}


def _gate_and_measure(case: Case, plan: Plan, group: Group, observer: Observer) -> Sample:
    began_s = time.time()
    with observer.phase("gate"):
        result, expected = _gate(case, plan, group, observer)
    proof: dict[str, Any] = {
        "rank": group.rank,
        "backend": group.backend,
        "began_s": began_s,
        **result.figures,
        "mesh": dict(plan.mesh.axes),
        **_predicted(plan, group),
    }
    wrong = result.why_wrong()
    if any(group.largest([float(wrong is not None)])):
        reason = wrong or "another rank's result is wrong"
        failed_at_s = time.time() if wrong else None
        return Sample(status="wrong_result", reason=reason, failed_at_s=failed_at_s, **proof)
    measured = measure(case, plan, group, observer, expected)
    phases_s, steps_s = observer.times.phases_s, observer.times.steps_s
    ended: dict[str, Any] = {"status": "ok", "phases_s": phases_s, "steps_s": steps_s}
    return Sample(**(ended | proof | measured))


def _predicted(plan: Plan, group: Group) -> dict[str, dict[str, int]]:
    """This rank's bytes; for a share, which has but one rank, the largest over all."""
    transfers = plan.traffic
    if isinstance(group, ShareOfGroup):
        return {"predicted_by_phase": by_busiest(transfers)}
    sent = count(transfers, group.rank)
    return {"predicted_by_phase": by_phase(sent), "predicted_by_axis": by_axis(sent)}


def _gate(
    case: Case, plan: Plan, group: Group, observer: Observer
) -> tuple[GateResult, Expected | None]:
    """This rank's result; of a workload that was compared whole, what the timed steps must give."""
    workload = workload_to_compare(case.workload, group)
    if isinstance(group, ShareOfGroup):
        observer.step()
        reference = one_device(workload, torch.device("cpu"), seed=case.seed, observer=observer)
        return _gate_by_threads(plan, reference, observer, case.execution), None
    reference = one_device(workload, group.device, seed=case.seed, observer=observer)
    ranks = group.transports, group.device
    result = run_gate(plan, *ranks, reference, observer, execution=case.execution)
    return result, Expected.of(reference) if workload == case.workload else None


def _gate_by_threads(
    plan: Plan, reference: Reference, observer: Observer, execution: Execution
) -> GateResult:
    """All the ranks of a share, as threads on the CPU; the worst of their results."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # ranks are threads already
    second = ThreadRendezvous(plan.ranks)

    def gate(transport: ThreadTransport) -> GateResult:
        gradients = ThreadTransport(transport.rank, second)
        transports = Transports(strategy=transport, gradients=gradients)
        # The threads run at the same time, so that only one of them counts.
        mine = Observer(times=observer.times) if transport.rank == 0 else Observer()
        return run_gate(plan, transports, torch.device("cpu"), reference, mine, execution=execution)

    results = run_rank_threads(plan.ranks, gate, [second])
    torch.set_num_threads(threads)
    # Wrong bytes are wrong though errors are small: such a rank comes before the one of the largest
    # error.
    wrong = [result for result in results if result.why_wrong()]
    return max(wrong or results, key=lambda result: result.worst.excess)


def verify_all(checks: Sequence[GateCheck], group: Group, observer: Observer) -> Iterator[Checked]:
    """Every check in order, on all ranks together, as this rank saw it. One device's answer is kept
    for the checks that follow on the same workload."""
    reference: Reference | None = None
    for check in checks:
        strategy = in_mesh(check.strategy, check.mesh)
        declined = strategy.declines(check.workload, group.size)
        if declined:
            yield Checked(declined=declined)
            continue
        cut = strategy.flattened(check.workload)
        plan = strategy.on(cut, group.size)
        with observer.phase(f"{check.name} on {check.workload.name}"):
            workload = workload_to_compare(cut, group)
            wanted = workload, check.sharpness
            # One device takes longer than all ranks together; forms of one strategy share its
            # answer.
            if reference is None or (reference.workload, reference.sharpness) != wanted:
                reference = None  # freed before the next one is made
                reference = one_device(
                    workload, group.device, sharpness=check.sharpness, observer=observer
                )
            ranks = group.transports, group.device
            result = run_gate(plan, *ranks, reference, observer, with_silent=True)
            silent = why_silent_differs(*group.largest(result.silent or (0.0,) * 4))
        yield Checked(wrong=result.why_wrong() or silent, **result.figures)
