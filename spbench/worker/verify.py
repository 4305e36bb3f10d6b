"""The gate alone, over many shapes: what ``spbench verify`` runs in each rank."""

from __future__ import annotations

from collections.abc import Sequence

from spbench.comm.group import Group
from spbench.results.sample import Checked
from spbench.strategies.registry import load
from spbench.worker.gate import run_gate
from spbench.worker.observer import Observer
from spbench.worker.reference import Reference, one_device, workload_to_compare
from spbench.workload.case import GateCheck


def verify_all(checks: Sequence[GateCheck], group: Group, observer: Observer) -> list[Checked]:
    """Every check in order, on all ranks together, as this rank saw it.

    One device's answer is kept for the checks that follow on the same workload.
    """
    checked: list[Checked] = []
    reference: Reference | None = None
    for check in checks:
        strategy = load(check.strategy)
        declined = strategy.misfit(check.workload) or strategy.why_not(check.workload, group.size)
        if declined:
            checked.append(Checked(declined=declined))
            continue
        with observer.phase(f"{check.strategy} on {check.workload.name}"):
            workload = workload_to_compare(check.workload, group)
            wanted = workload, check.sharpness
            if reference is None or (reference.workload, reference.sharpness) != wanted:
                reference = None  # freed before the next one is made
                reference = one_device(
                    workload, group.device, sharpness=check.sharpness, observer=observer
                )
            result = run_gate(strategy, group.transports, group.device, reference, observer)
        wrong = result.why_wrong() or ""
        checked.append(Checked(gated_on=workload.name, wrong=wrong, **result.figures))
    return checked
