"""The gate alone, over many shapes: what ``spbench verify`` runs in each rank."""

from __future__ import annotations

from collections.abc import Sequence

from spbench.comm.group import Group
from spbench.results.heartbeat import Heartbeat
from spbench.results.sample import Checked
from spbench.strategies.registry import load
from spbench.worker.gate import run_gate
from spbench.worker.observer import PhaseTimes
from spbench.worker.reference import Reference, one_device, workload_to_compare
from spbench.worker.run_case import watched
from spbench.workload.case import GateCheck
from spbench.workload.workload import Workload


def verify_all(
    checks: Sequence[GateCheck], group: Group, pulse: Heartbeat | None = None
) -> list[Checked]:
    """Every check in order, on all ranks together; what this rank found.

    One device's answer is kept for the checks that follow on the same workload.
    """
    pulse = pulse or Heartbeat()
    links = watched(group, pulse)
    found: list[Checked] = []
    reference: Reference | None = None
    for check in checks:
        pulse.phase(f"{check.strategy} on {check.workload.name}")
        strategy = load(check.strategy)
        work = check.workload
        declined = strategy.misfit(work) or strategy.why_not(work, group.size)
        if declined:
            found.append(Checked(declined=declined))
            continue
        workload = workload_to_compare(check.workload, group)
        if reference is None or not _answers(reference, check, workload):
            reference = None  # freed before the next one is made
            ledger = PhaseTimes(alive=pulse.beat)
            sharp = check.sharpness
            reference = one_device(workload, group.device, sharpness=sharp, ledger=ledger)
        outcome = run_gate(strategy, links, group.device, reference)
        found.append(
            Checked(
                gated_on=workload.name,
                wrong=outcome.why_wrong() or "",
                output_error=outcome.output.relative,
                gradient_error=None if outcome.gradient is None else outcome.gradient.relative,
                tolerance=outcome.worst.tolerance,
            )
        )
    return found


def _answers(reference: Reference, check: GateCheck, workload: Workload) -> bool:
    return reference.workload == workload and reference.sharpness == check.sharpness
