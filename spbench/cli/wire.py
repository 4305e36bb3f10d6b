"""``verify --wire``: what it needs of the machine, and its checks from start to exit code."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

import click

from spbench.errors import DONE, SOME_FAILED, UNFIT, Failure
from spbench.launch import namespace
from spbench.launch.local import LocalLauncher
from spbench.launch.torchrun import joined_ranks
from spbench.launch.wire_checks import WireVerdict, run_wire_checks
from spbench.report.wire_table import show_wire
from spbench.sweep.verification import on_each
from spbench.workload.case import GateCheck
from spbench.workload.workload import Workload


def refuse_wire(device: str) -> None:
    """Raises Failure where there is no wire to look at."""
    if device == "cuda":
        raise Failure(
            "--device cuda: NCCL's bytes pass no network interface of this machine; "
            "--wire looks at gloo's, so leave --device out, or use cpu"
        )
    if joined_ranks() is not None:
        raise Failure(
            "--wire starts ranks of its own, in a network namespace that they share with nobody; "
            "it cannot join those of torchrun (RANK and WORLD_SIZE are set), start it by itself"
        )


def verify_wire(
    strategies: Sequence[str],
    workloads: Sequence[Workload],
    ranks: Sequence[int],
    timeout_s: float,
    *,
    as_json: bool,
) -> int:
    """Runs and shows the checks; the exit code."""
    if 1 in ranks:
        raise Failure("--gpus 1: one rank sends nothing; --wire needs two or more")
    missing = namespace.why_not()
    if missing is not None:
        raise Failure(f"--wire: {missing}", UNFIT)
    checks = [GateCheck(workload=work, strategy=one) for work in workloads for one in strategies]
    verdicts = on_each(
        ranks,
        checks,
        lambda log: LocalLauncher(log, namespace.ENVIRONMENT, into=namespace.INTO),
        lambda size, launcher, place: run_wire_checks(checks, size, launcher, place, timeout_s),
    )
    if as_json:
        click.echo(json.dumps([asdict(verdict) for verdict in verdicts], indent=2))
    else:
        show_wire(verdicts)
    return exit_code(verdicts)


def exit_code(verdicts: Sequence[WireVerdict]) -> int:
    """What is unclear is no more proved than what is WRONG."""
    outcomes = {verdict.outcome for verdict in verdicts}
    if outcomes <= {"declined", "unclear"}:
        click.echo("nothing was proved; give other strategies, ranks or workloads", err=True)
        return SOME_FAILED
    return DONE if outcomes <= {"passed", "declined"} else SOME_FAILED
