"""``spbench project``: times on clusters that are not at hand, and their score."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from spbench.cli import options
from spbench.cli.help_page import HelpPage
from spbench.cli.project_against import print_against
from spbench.cli.selection import choose_workload, rank_counts, settings_of
from spbench.errors import DONE, SOME_FAILED, Failure
from spbench.report.progress import DRY_RUNS, loading_torch, watched
from spbench.report.projection_table import print_csv, show_projections
from spbench.report.tables import print_json
from spbench.sweep.run_folder import output_folder
from spbench.text import quoted

if TYPE_CHECKING:
    from spbench.projection.advise.project import Projection
    from spbench.projection.costmodel.hardware import Cluster
    from spbench.projection.costmodel.step_time import Mode
    from spbench.workload.workload import Workload


@click.command("project", cls=HelpPage)
@click.argument("workload", required=False, metavar="[WORKLOAD]")
@options.cluster_option()
@options.strategy_option
@click.option(
    "-g", "--gpus", metavar="N[,N...]", help=f"Numbers of ranks.  {options.RANKS_OF_CLUSTER}"
)
@options.settings_option
@click.option(
    "--axis",
    "lengths",
    metavar="NAME=N[,N...]",
    help="Lengths of an axis, one after another, such as space=1024,4096.",
)
@options.share_option
@options.link_rate_option
@click.option("--compiled", is_flag=True, help="Elementwise kernels fused, launches cheaper.")
@click.option(
    "--kernel",
    metavar="NAME",
    default="",
    show_default=False,
    help="Attention kernel.  [default: the cluster's first]",
)
@click.option(
    "--against",
    type=options.PATH,
    metavar="RUN",
    help="Score the projection on the measurements of a run; --cluster: what it ran on.",
)
@click.option(
    "--out",
    type=options.PATH,
    metavar="DIR",
    help="Also write the cases as rows for compare and plot; DIR may hold a run.",
)
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV rows, their column kind: projected.")
@options.json_option
def command(
    workload: str | None,
    cluster: str | None,
    strategies: Sequence[str],
    gpus: str | None,
    settings: Sequence[str],
    lengths: str | None,
    share: Path | None,
    link_rate: str | None,
    compiled: bool,
    kernel: str,
    against: Path | None,
    out: Path | None,
    as_csv: bool,
    as_json: bool,
) -> int:
    """Project the step time of WORKLOAD on a cluster that is not at hand; nothing is measured.

    The strategy's own code runs on tensors without data; a cost model gives its kernels and
    messages a time on the cluster. With --against it is scored on a run of the machine that
    --cluster describes.
    """
    if against is not None:
        is_beside = bool(workload or out or share)
        return print_against(against, cluster, link_rate, is_beside=is_beside, as_json=as_json)
    if workload is None or cluster is None:
        raise Failure(
            f"name a {'workload' if workload is None else 'cluster'}, as in "
            "'spbench project dsp-720m --cluster hgx-h100 --gpus 8,16'; or give --against"
        )
    sizes = [choose_workload(workload, [*settings, *more]) for more in settings_of(lengths)]
    ranks, names = rank_counts(gpus or "8"), options.strategies_of(strategies)
    if share is not None and (compiled or kernel):
        raise Failure("--share measured kernels as they ran; leave out --compiled and --kernel")
    with loading_torch():
        from spbench.projection.costmodel.sensitivity import cluster_at
        from spbench.projection.costmodel.step_time import Mode
    mode, on = Mode(compiled=compiled, attention_kernel=kernel), cluster_at(cluster, link_rate)
    ranks = ranks if gpus else [min(ranks[0], on.most_ranks or ranks[0])]
    asked = ["-w", workload, *(word for each in settings for word in ("--set", each))]
    projected = project_all(sizes, on, names, ranks, mode, share, asked, lengths or "")
    if out is not None:
        _write(projected, output_folder(out, sizes[0].name), mode)
    if as_json or as_csv:
        (print_json if as_json else print_csv)([each.data for each in projected])
    else:
        for size in sizes:
            shown = [each for each in projected if each.workload == size]
            show_projections([each.data for each in shown], shown[0].title)
    return DONE if any(each.cost is not None for each in projected) else SOME_FAILED


def project_all(
    sizes: "Sequence[Workload]",
    cluster: "Cluster",
    strategies: Sequence[str],
    ranks: Sequence[int],
    mode: "Mode",
    share: Path | None,
    asked: Sequence[str],
    lengths: str = "",
) -> "list[Projection]":
    """Every case of every size; with a share it says on stderr whose computation is measured.
    ``asked``: words that name the workload; ``lengths``: the value of ``--axis``, if any."""
    from spbench.projection.advise.project import project, read_shares, which_are_measured
    from spbench.projection.dryrun.rank_work import forked, works

    shares = read_shares(share, cluster)
    every = [(size, name, count) for size in sizes for count in ranks for name in strategies]
    fitting = [case for case in every if case[2] <= (cluster.most_ranks or case[2])]
    with forked(works(cluster.device.runs_on, with_memory=True), fitting) as work_of:
        cases = (
            case
            for size in sizes
            for case in project(size, cluster, strategies, ranks, mode, work_of, shares)
        )
        each = [f"{name} on {count}" for _, name, count in every]
        projected = list(watched(cases, each, DRY_RUNS))
    if share is not None:
        axis = lengths.partition("=")[0].strip()
        click.echo(which_are_measured(projected, shares, asked, axis), err=True)
    return projected


def _write(projected: "Sequence[Projection]", folder: Path, mode: "Mode") -> None:
    """Writes the rows, and says on stderr what shows them."""
    from spbench.projection.advise.projected_rows import write_rows

    write_rows(projected, folder, mode, sys.argv)
    click.echo(f"rows in {folder}; see them with: {quoted('spbench', 'plot', folder)}", err=True)
