"""``spbench verify``: the gate alone, over many shapes."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Literal

import click

from spbench.cli import choices
from spbench.cli.exits import DONE, SOME_FAILED, Failure
from spbench.cli.planted import refuse_fault
from spbench.launch.checks import RanksFailedError, Verdict, checks_for, run_checks
from spbench.launch.join import JoinedLauncher, joined_ranks
from spbench.launch.local import Launcher, LocalLauncher
from spbench.launch.plan import check_options
from spbench.report.tables import show_verdicts
from spbench.strategies.registry import UnknownStrategyError
from spbench.workload.case import Device
from spbench.workload.catalogue import find, names
from spbench.workload.job import Check, Job
from spbench.workload.load import with_settings
from spbench.workload.words import counted
from spbench.workload.workload import Workload

SMALL = "-small"
DTYPES = ("float64", "float32", "bfloat16", "float16")


@click.command("verify", short_help="Prove strategies equal to one device on many shapes.")
@choices.strategy_option
@choices.gpus_option
@click.option(
    "-w",
    "--workload",
    "workloads",
    multiple=True,
    metavar="NAME|FILE",
    help="Instead of the built-in shapes; 'all' for the whole catalogue.",
)
@click.option("--small", is_flag=True, help="The -small twins of the named workloads.")
@click.option("--dtype", type=click.Choice(DTYPES), default="float64", show_default=True)
@click.option("--timeout", type=choices.Positive(), default=1800.0)
@choices.device_option
@choices.json_option
def command(
    strategies: Sequence[str],
    gpus: str | None,
    workloads: Sequence[str],
    small: bool,
    dtype: Literal["float64", "float32", "bfloat16", "float16"],
    timeout: float,
    device: str,
    as_json: bool,
) -> int:
    """Prove strategies equal to one device: output, input gradient, every weight gradient.

    Errors are relative. Tolerances: 1e-9 in float64, 1e-4 in float32; in 16 bits four times
    the error that one device makes itself. Bytes sent must equal the prediction exactly.
    A workload too large for one device is compared as a reduced one of its kind.
    """
    refuse_fault()
    chosen = choices.parse_strategies(strategies)
    shapes = [with_settings(shape, [f"dtype={dtype}"]) for shape in _shapes(workloads, small)]
    where = choices.choose_device(device)
    ranks = choices.parse_ranks(gpus, where)
    try:
        check_options(chosen)
    except UnknownStrategyError as error:
        raise Failure(str(error)) from None
    verdicts = _verify(checks_for(chosen, shapes), ranks, where, timeout)
    if verdicts is None:
        return DONE
    if as_json:
        click.echo(json.dumps([asdict(verdict) for verdict in verdicts], indent=2))
    else:
        show_verdicts(verdicts)
    outcomes = {verdict.outcome for verdict in verdicts}
    if outcomes == {"declined"}:
        said = "every check was declined; give other strategies, ranks or workloads"
        click.echo(f"nothing was proved: {said}", err=True)
        return SOME_FAILED
    return SOME_FAILED if "WRONG" in outcomes else DONE


def _shapes(workloads: Sequence[str], small: bool) -> list[Workload]:
    if not workloads:
        if small:
            raise Failure("--small needs --workload: 'all', or names of the catalogue")
        return [find(name, "verify") for name in names("verify")]
    large = [name for name in names() if not name.endswith(SMALL)]
    wanted = [part for group in workloads for part in group.split(",")]
    every = [name for part in wanted for name in (large if part == "all" else [part])]
    chosen = [f"{name}{SMALL}" if small and name in large else name for name in every]
    if small and (own := [name for name in chosen if not name.endswith(SMALL)]):
        known = [name for name in own if name not in large]
        raise Failure(f"{known[0]!r} has no -small twin; --small is for names of the catalogue")
    return [choices.choose_workload(name, []) for name in dict.fromkeys(chosen)]


def _verify(
    checks: list[Check], ranks: list[int], device: Device, timeout_s: float
) -> list[Verdict] | None:
    """Every check on every number of ranks; None on a rank that is not the first."""
    launcher: Launcher
    # The logs are worth keeping only if ranks fail, and then the message says where they are.
    folder = Path(tempfile.mkdtemp(prefix="spbench-verify-"))
    if joined_ranks(os.environ) is not None:
        job = Job(ranks=ranks[0], device=device, checks=checks, timeout_s=timeout_s)
        launcher = JoinedLauncher(job)
        if not launcher.is_first:
            launcher.follow()
            return None
    else:
        launcher = LocalLauncher(folder / "launcher.log")
    verdicts = []
    try:
        for size in ranks:
            click.echo(f"{counted(len(checks), 'check')} on {counted(size, 'rank')}", err=True)
            place = folder / f"{size}-ranks"
            verdicts += run_checks(checks, size, device, launcher, place, timeout_s)
    except RanksFailedError as error:
        raise Failure(str(error), SOME_FAILED) from None
    finally:
        launcher.close()
    shutil.rmtree(folder, ignore_errors=True)
    return verdicts
