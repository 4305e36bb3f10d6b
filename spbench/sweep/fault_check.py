"""A fault that is planted on purpose must be valid, and must hit a rank that is timed.

Otherwise a test with that fault would prove nothing, unnoticed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

import click

from spbench.errors import Failure
from spbench.worker.fault_injection import VARIABLE, WORKS, Fault
from spbench.workload.case import Case, Cell


def planted_fault() -> Fault | None:
    """The fault that the environment asks for. Raises Failure if it is not valid."""
    try:
        return Fault.of(os.environ)
    except ValueError as error:
        raise Failure(str(error)) from None


def check_hits(fault: Fault, cases: Sequence[Case]) -> None:
    """Raises Failure for a fault in a rank, or in a step, that none of these cases has."""
    planted = f"{VARIABLE}={fault.text!r}"
    if not cases:
        raise Failure(f"{planted}: no case can run, so it hits nobody; leave it out")
    # A share is rank 0 alone, whatever group it claims.
    most = max(1 if case.kind == "one_gpu_share" else case.ranks for case in cases)
    if fault.rank >= most:
        others = "rank0" if most == 1 else f"rank0 to rank{most - 1}"
        why = f"names rank {fault.rank}, which no case has; {others} would work"
        raise Failure(f"{planted} {why}")
    steps = max(case.budget.max_steps for case in cases)
    if fault.place.startswith("step") and int(fault.place[4:]) >= steps:
        why = f"names {fault.place}, and no case has more than {steps} steps"
        raise Failure(f"{planted} {why}; step0 to step{steps - 1} can be named")


def announce_fault(fault: Fault | None, cells: Iterable[Cell]) -> None:
    """Says on stderr which fault is planted. Raises Failure if no cell that can run has it."""
    if fault is not None:
        check_hits(fault, [cell.case for cell in cells if cell.why_not is None])
        click.echo(f"{VARIABLE}={fault.text}: a fault is planted, and rows say so", err=True)


def refuse_fault() -> None:
    """Raises Failure for any fault, in a command that measures nothing."""
    fault = planted_fault()
    if fault is not None:
        raise Failure(
            f"{VARIABLE}={fault.text!r} is planted in what run and check measure, and verify "
            f"measures nothing; leave it out, or use run ({WORKS})"
        )
