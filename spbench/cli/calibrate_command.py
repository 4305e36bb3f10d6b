"""``spbench calibrate``: this machine as a cluster that cases are projected to."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import click

from spbench.cli import options
from spbench.cli.help_page import HelpPage
from spbench.cli.selection import choose_workload, parse_ranks
from spbench.errors import DONE, Failure
from spbench.report.live_line import loading_torch
from spbench.results.find_run import RESULTS
from spbench.sweep.devices import choose_device, default_ranks

FOLDER = RESULTS / "clusters"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@click.command("calibrate", cls=HelpPage)
@click.argument("name", default="here")
@options.gpus_option
@click.option(
    "-w",
    "--workload",
    "workloads",
    multiple=True,
    metavar="NAME|FILE",
    help="Workloads whose shapes are timed, repeated.  [default: a few of the catalogue]",
)
@click.option(
    "-o", "--out", type=options.PATH, help="File to write.  [default: in results/clusters]"
)
@options.duration_option("--timeout", "300", "Deadline of each number of ranks: 90, 90s, 30m.")
@options.device_option
def command(
    name: str,
    gpus: str | None,
    workloads: Sequence[str],
    out: Path | None,
    timeout: float,
    device: str,
) -> int:
    """Time kernels and collectives here, and write them down as the cluster NAME.

    Products, attentions, passes over memory, launches, and each collective through the transports
    that strategies use, by size, on each number of ranks: 'project' and 'recommend' then speak of
    this machine. It takes about a minute, on an otherwise idle machine.
    """
    if not NAME.fullmatch(name):
        raise Failure(f"{name!r} is not a name of a cluster; use letters, digits, '.', '_' and '-'")
    on = choose_device(device)
    ranks = parse_ranks(gpus or _all_ranks(default_ranks(on)), on)
    if max(ranks) == 1:
        raise Failure("--gpus 1: a single rank has no links; give 1,2 or more")
    chosen = [choose_workload(each, []) for each in workloads]
    with loading_torch():
        from spbench.projection.calibrate import calibrate, write
    cluster = calibrate(name, ranks, on, timeout, chosen)
    path = out or FOLDER / f"{name}.yaml"
    write(cluster, path)
    click.echo(f"kept in {path}; use it as --cluster {path}")
    return DONE


def _all_ranks(most: int) -> str:
    """1, 2, 4 ... up to ``most``, and that."""
    powers = [2**n for n in range(most.bit_length()) if 2**n < most]
    return ",".join(map(str, [*powers, most]))
