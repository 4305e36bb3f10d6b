"""The gate alone, over many shapes: what ``spbench verify`` runs in each rank."""

from __future__ import annotations

from collections.abc import Sequence

from spbench.bench.gate import run_gate
from spbench.bench.reference import one_device
from spbench.bench.step import Links
from spbench.comm.group import Group
from spbench.results.sample import Checked
from spbench.strategies.registry import load
from spbench.workload.job import Check


def verify_all(checks: Sequence[Check], group: Group) -> list[Checked]:
    """Every check in order, on all ranks together; what this rank found."""
    return [_verify(check, group) for check in checks]


def _verify(check: Check, group: Group) -> Checked:
    strategy = load(check.strategy)
    declined = strategy.why_not(check.workload, group.size)
    if declined:
        return Checked(declined=declined)
    links = Links(strategy=group.strategy, gradients=group.gradients)
    reference = one_device(check.workload, group.device, sharpness=check.sharpness)
    outcome = run_gate(strategy, links, group.device, reference)
    return Checked(
        wrong=outcome.why_wrong() or "",
        output_error=outcome.output.relative,
        gradient_error=None if outcome.gradient is None else outcome.gradient.relative,
        tolerance=outcome.worst.tolerance,
    )
