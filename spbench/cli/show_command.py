"""``spbench show``: one block of a workload as a picture, a lane for each strategy."""

from __future__ import annotations

from collections.abc import Sequence

import click

from spbench.cli import options
from spbench.cli.selection import choose_workload
from spbench.report.diagram.draw import show
from spbench.report.diagram.layout import Picture
from spbench.report.live_line import loading_torch
from spbench.report.tables import print_json
from spbench.strategies.describe import lanes
from spbench.strategies.registry import expand_names


@click.command("show")
@click.argument("workload", metavar="WORKLOAD")
@options.strategy_option
@click.option(
    "-g",
    "--gpus",
    "ranks",
    type=click.IntRange(1, 1024),
    default=8,
    help="Number of ranks; no process is started.",
)
@options.settings_option
@options.json_option
def command(
    workload: str, strategies: Sequence[str], ranks: int, settings: Sequence[str], as_json: bool
) -> None:
    """Draw one block of WORKLOAD, a name of the catalogue or a YAML file.

    For each strategy the axis that is sharded while each sublayer runs, and the bytes that
    the busiest rank sends. Nothing is run.
    """
    work = choose_workload(workload, settings)
    with loading_torch():
        drawn = lanes(work, expand_names(strategies), ranks)
    picture = Picture(workload=work, ranks=ranks, lanes=drawn)
    if as_json:
        print_json(picture.as_data())
    else:
        show(picture)
