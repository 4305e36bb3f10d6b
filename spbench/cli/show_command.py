"""``spbench show``: one block of a workload as a picture, a lane for each strategy."""

from collections.abc import Sequence

import click

from spbench.cli import options
from spbench.cli.help_page import HelpPage
from spbench.cli.selection import choose_workload, rank_counts
from spbench.errors import Failure
from spbench.report.block_diagram import Picture, show
from spbench.report.progress import loading_torch
from spbench.report.tables import print_json
from spbench.strategies.describe import lanes
from spbench.workload.case import MAX_RANKS
from spbench.workload.mesh import CaseMesh


@click.command("show", cls=HelpPage)
@options.workload_argument
@options.strategy_option
@click.option(
    "-g",
    "--gpus",
    "ranks",
    default="8",
    metavar="N[,N...]",
    help="Numbers of ranks, a picture for each; no process is started.",
)
@options.mesh_option
@options.settings_option
@options.json_option
def command(
    workload: str,
    strategies: Sequence[str],
    ranks: str,
    meshes: Sequence[CaseMesh],
    settings: Sequence[str],
    as_json: bool,
) -> None:
    """Draw one block of WORKLOAD, a name of the catalogue or a YAML file.

    For each strategy the axis that is sharded while each sublayer runs, and the bytes that
    the busiest rank sends. Nothing is run.
    """
    work, names = choose_workload(workload, settings), options.strategies_of(strategies)
    counts = rank_counts(ranks)
    if max(counts) > MAX_RANKS:
        raise Failure(f"--gpus {max(counts)}: too many for one group; use 1 to {MAX_RANKS}")
    with loading_torch():
        drawn = {
            count: [lane for mesh in meshes for lane in lanes(work, names, count, mesh)]
            for count in counts
        }
    pictures = [Picture(workload=work, ranks=count, lanes=drawn[count]) for count in counts]
    if as_json:
        data = [picture.as_data() for picture in pictures]
        print_json(data if len(data) > 1 else data[0])
        return
    for place, picture in enumerate(pictures):
        if place:
            click.echo()
        show(picture)
