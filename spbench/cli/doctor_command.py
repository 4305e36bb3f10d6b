"""``spbench doctor``: checks whether this machine is fit, and says what to do if it is not."""

import os
from dataclasses import asdict
from typing import Any

import click

from spbench.cli import options
from spbench.cli.cluster_options import cluster_of, nodes_options
from spbench.cli.help_page import HelpPage
from spbench.cli.option_types import Count
from spbench.cli.selection import (
    CLUSTER,
    DEFAULT_WORKLOAD,
    choose_workload,
    parse_ranks,
    refuse_flags,
)
from spbench.doctor.examine import examine
from spbench.doctor.machine_checks import DeviceChoice
from spbench.errors import DONE, UNFIT, Failure
from spbench.launch.torchrun import joined_ranks
from spbench.report.doctor_table import show_diagnoses, show_links
from spbench.report.tables import print_json
from spbench.results.cuda_driver import cuda_gpus
from spbench.results.find_run import RESULTS
from spbench.results.link_report import keep
from spbench.results.machine import VISIBLE, is_cudas_to_say, visible
from spbench.results.nvml import GpuState, NvmlReport, read_nvml
from spbench.sweep.devices import MAX_PROCESSES, choose_device
from spbench.text import counted
from spbench.worker.fault_injection import refuse_fault

OF_LINKS = ("workload", "settings", "strategies", *CLUSTER)
"""Parameters that mean nothing without --links."""


@click.command("doctor", cls=HelpPage)
@click.option(
    "-g",
    "--gpus",
    type=Count(1, MAX_PROCESSES),
    metavar="N",
    help="Ranks that try every collective.  [default: one per GPU; on a CPU 2 to 8, by cores]",
)
@options.duration_option(
    "--timeout", "120", "Time for torch to load, and for each start of ranks: 90, 90s, 2m."
)
@click.option("--links", is_flag=True, help="Time collectives instead: how fast are the links?")
@click.option(
    "-w",
    "--workload",
    default=DEFAULT_WORKLOAD,
    metavar="NAME|FILE",
    help="With --links: the workload whose transfers are timed.",
)
@options.settings_option
@options.strategy_option
@nodes_options
@options.device_option
@options.json_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    gpus: int | None,
    timeout: float,
    links: bool,
    device: DeviceChoice,
    as_json: bool,
    **_: Any,
) -> int:
    """Check whether this machine is fit: software, GPUs, cores, memory, and every collective.

    Two ranks, then all, exchange known numbers through every collective. Each check is ok, warn
    (figures may suffer) or fail (runs would fail, or be wrong); warn and fail come with a remedy.
    Exit code 6 if any check fails.

    With --links all ranks time each collective at the sizes that a workload's strategies use, on
    several machines or under torchrun, too. 'run' and 'compare' know the rates from then on.
    """
    if links:
        return _links(ctx)
    refuse_flags(ctx, OF_LINKS, "needs --links")
    if joined_ranks() is not None:
        raise Failure(
            "doctor starts its ranks itself; call it without torchrun, on each machine, "
            "or with --links"
        )
    driver, usable = _driver_and_gpus(gpus, device)
    diagnoses = examine(device, gpus, timeout, dict(os.environ), driver, usable)
    if as_json:
        print_json([asdict(diagnosis) for diagnosis in diagnoses])
    else:
        show_diagnoses(diagnoses)
    return UNFIT if any(diagnosis.status == "fail" for diagnosis in diagnoses) else DONE


def _links(ctx: click.Context) -> int:
    """Prints the table on the first rank and node, and keeps it for later runs."""
    # These import torch, which the other checks do without.
    from spbench.doctor.link_rates import LinkCheck
    from spbench.sweep.link_check import check_links

    refuse_fault("doctor --links")
    flags = ctx.params
    device = choose_device(flags["device"])
    cluster = cluster_of(**{name: flags[name] for name in CLUSTER})
    ranks = None if flags["gpus"] is None else str(flags["gpus"])
    (count,) = parse_ranks(ranks, device, nodes=1 if cluster is None else cluster.nodes)
    check = LinkCheck(
        workload=choose_workload(flags["workload"], flags["settings"]),
        strategies=options.strategies_of(flags["strategies"]),
        ranks=count,
        device=device,
        timeout_s=flags["timeout"],
    )
    report = check_links(check, cluster)
    if report is None:
        return DONE
    path = keep(report, RESULTS)
    if flags["as_json"]:
        print_json(report.model_dump())
    else:
        show_links(report)
    click.echo(f"kept in {path}, for runs on these ranks", err=True)
    return DONE


def _driver_and_gpus(gpus: int | None, device: DeviceChoice) -> tuple[NvmlReport, list[GpuState]]:
    """What NVML tells, and the GPUs that ranks may use, with the index -1 where NVML does not know
    them. Raises Failure if they are too few."""
    import pynvml

    driver, shown = read_nvml(pynvml), os.environ.get(VISIBLE)
    usable = visible(driver.gpus, shown)
    if is_cudas_to_say(driver.gpus, shown):
        usable = [GpuState(index=-1, name=gpu["name"]) for gpu in cuda_gpus()]
    if gpus is not None and device != "cpu" and 0 < len(usable) < gpus:
        raise Failure(
            f"--gpus {gpus}: this machine has {counted(len(usable), 'GPU')}; "
            f"use 1 to {len(usable)}, or --device cpu"
        )
    return driver, usable
