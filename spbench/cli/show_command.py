"""``spbench show``: one block of a workload as a picture, a lane for each strategy."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click

from spbench.cli import options
from spbench.errors import Failure
from spbench.report.diagram.draw import show
from spbench.report.diagram.layout import Picture
from spbench.strategies.describe import lanes
from spbench.strategies.registry import UnknownStrategyError
from spbench.sweep import devices


@click.command(
    "show", short_help="Draw a block: which axis each strategy shards, and what it sends."
)
@click.argument("workload", metavar="WORKLOAD")
@options.strategy_option
@click.option(
    "-g",
    "--gpus",
    "ranks",
    type=click.IntRange(1, 1024),
    default=8,
    show_default=True,
    help="Number of ranks; none is started.",
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
    chosen = devices.choose_workload(workload, settings)
    names = devices.parse_strategies(strategies)
    try:
        picture = Picture(workload=chosen, ranks=ranks, lanes=lanes(chosen, names, ranks))
    except UnknownStrategyError as error:
        raise Failure(str(error)) from None
    if as_json:
        click.echo(json.dumps(picture.as_data(), indent=2, default=round))
    else:
        show(picture)
