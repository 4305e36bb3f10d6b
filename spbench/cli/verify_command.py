"""``spbench verify``: the gate alone, on many shapes."""

from collections.abc import Sequence
from dataclasses import asdict
from itertools import product

import click

from spbench.cli import options
from spbench.cli.help import HelpPage
from spbench.cli.selection import choose_workload, parse_ranks
from spbench.errors import DONE, SOME_FAILED, Failure
from spbench.launch.launcher import Deadlines
from spbench.report.progress import loading_torch
from spbench.report.tables import print_json, show_verdicts
from spbench.results.hand_over import VerifyResult
from spbench.strategies.registry import VENDORS, forms_of, load
from spbench.sweep.devices import choose_device
from spbench.sweep.verification import checks_for, verify
from spbench.text import GIVE_OTHERS
from spbench.worker.fault_injection import refuse_fault
from spbench.workload.catalogue import SMALL, find, with_settings
from spbench.workload.config_names import names
from spbench.workload.mesh import NO_MESH, CaseMesh
from spbench.workload.workload import Workload

DTYPES = ("float64", "float32", "bfloat16", "float16")


@click.command("verify", cls=HelpPage)
@options.strategy_option
@options.gpus_option
@options.mesh_option
@click.option(
    "-w",
    "--workload",
    "workloads",
    multiple=True,
    metavar="NAME|FILE",
    help="Workloads in place of the built-in shapes; 'all' for the whole catalogue. One of these "
    "shapes goes by its name, as attention-alone.",
)
@click.option("--small", is_flag=True, help="Use the -small versions of the named workloads.")
@click.option(
    "--dtype", type=click.Choice(DTYPES), default="float64", help="The type that ranks compute in."
)
@options.duration_option(
    "--timeout", "1800", "Deadline of all checks on one number of ranks: 90, 90s, 30m, 2h."
)
@options.hang_option
@options.device_option
@options.json_option
def verify_command(
    strategies: Sequence[str],
    gpus: str | None,
    meshes: Sequence[CaseMesh],
    workloads: Sequence[str],
    small: bool,
    dtype: str,
    timeout: float,
    hang_after: float,
    device: str,
    as_json: bool,
) -> int:
    """Prove strategies equal to one device: output, input gradient, every weight gradient.

    Errors are relative. Tolerances: 1e-9 in float64, 1e-4 in float32; in 16 bits, and in float32
    where rows of scores are sharp, four times the error that one device makes itself; 16 bits are
    proved in float32 as well. Bytes sent must equal the prediction exactly, and no layout may be
    cheaper. A workload that is too large for one device is compared as a reduced workload. With
    'all' on the built-in shapes each strategy is proved with the options that people run, too.
    """
    refuse_fault("verify")
    chosen = options.strategies_of(strategies)
    shapes = _shapes(workloads, small)
    shapes = [with_settings(shape, [f"dtype={dtype}"]) for shape in shapes]
    on = choose_device(device)
    ranks = parse_ranks(gpus, on)
    is_everything = options.asks_for(strategies, "all") and not workloads
    with loading_torch():
        for strategy in chosen:
            load(strategy)  # raises Failure for an option that it does not have
        plain = [name for name in chosen if ":" not in name]
        if options.asks_for(strategies, "vendors"):  # each form is other code of a package
            of_vendors = forms_of([name for name in plain if name in VENDORS])
            chosen = list(dict.fromkeys([*chosen, *of_vendors]))
        own = [name for name in plain if name not in VENDORS]
        forms = forms_of(own) if is_everything else []
    if is_everything and meshes == (NO_MESH,):
        meshes = ()  # those that the branches of each shape have
    for mesh, count in product(meshes, ranks):
        if idle := mesh.why_idle(count):
            click.echo(idle, err=True)
    deadlines = Deadlines(launch_s=timeout, hang_s=hang_after)
    results = verify(checks_for(chosen, shapes, meshes, forms), ranks, on, deadlines)
    return DONE if results is None else _show(results, as_json=as_json)


def _shapes(workloads: Sequence[str], small: bool) -> list[Workload]:
    """The named workloads, or the built-in shapes."""
    if not workloads:
        if small:
            raise Failure("--small needs --workload: 'all', or names of the catalogue")
        return [find(name, "verify") for name in names("verify")]
    large, built_in = [name for name in names() if not name.endswith(SMALL)], names("verify")
    wanted = [part for group in workloads for part in group.split(",")]
    every = [name for part in wanted for name in (large if part == "all" else [part])]
    twins = {name: f"{name}{SMALL}" for name in large if f"{name}{SMALL}" in names()}
    chosen = [twins.get(name, name) if small else name for name in every]
    known = {*names()}
    if small and (own := [name for name in chosen if name not in known]):
        raise Failure(f"{own[0]!r} has no -small version; --small is for names of the catalogue")
    return [
        find(name, "verify") if name in built_in else choose_workload(name, [])
        for name in dict.fromkeys(chosen)
    ]


def _show(results: Sequence[VerifyResult], *, as_json: bool) -> int:
    """Prints all results, and returns the exit code."""
    if as_json:
        print_json([asdict(result) for result in results])
    else:
        show_verdicts(results)
    outcomes = {result.outcome for result in results}
    if outcomes == {"declined"}:
        click.echo(f"nothing was proved: every check was declined; {GIVE_OTHERS}", err=True)
        return SOME_FAILED
    return SOME_FAILED if {"WRONG", "FAILED"} & outcomes else DONE
