"""``spbench project`` and ``spbench recommend``: steps on clusters that are not at hand."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from spbench.cli import options
from spbench.cli.help import HelpPage
from spbench.cli.options import refuse_flags
from spbench.cli.selection import choose_workload, rank_counts, settings_of
from spbench.errors import DONE, SOME_FAILED, Failure
from spbench.report.progress import DRY_RUNS, loading_torch, stamped, watched
from spbench.report.projection_table import print_csv, show_errors, show_projections
from spbench.report.tables import print_json
from spbench.results.find_run import find_run
from spbench.sweep.run_folder import output_folder
from spbench.text import counted, quoted
from spbench.worker.fault_injection import refuse_fault
from spbench.workload.case import MAX_RANKS
from spbench.workload.mesh import CaseMesh
from spbench.workload.workload import Workload

if TYPE_CHECKING:
    from spbench.projection.advise.project import Projection
    from spbench.projection.advise.search import Searched
    from spbench.projection.costmodel.hardware import Cluster
    from spbench.projection.costmodel.step_time import Mode

OF_PROJECTION = (
    *("strategies", "gpus", "meshes", "settings", "lengths", "compiled", "kernel"),
    "as_csv",
)
"""Parameters of ``project`` that choose and print cases, which measurements do themselves."""


def print_against(run: Path, cluster: str | None, *, is_beside: bool, as_json: bool) -> int:
    """Prints measured steps of a run beside their projection to the cluster.

    ``is_beside``: whether flags were given that choose what to project. Raises Failure then, and
    where no cluster is named.
    """
    context, why = click.get_current_context(), "which says what is projected; leave it out"
    refuse_flags(context, OF_PROJECTION, f"cannot be given with --against, {why}")
    if is_beside:
        raise Failure("--against names the workloads itself; leave those, --out and --share")
    if cluster is None:
        raise Failure(f"{run}: a run; name with --cluster what its machine was calibrated as")
    with loading_torch():
        from spbench.projection.advise.own_run import beside, judged, measured
        from spbench.projection.costmodel.cluster_file import find
    cases = beside(measured(find_run(run)), find(cluster))
    rows, total = [each.data for each in cases], judged(cases)
    if as_json:
        print_json({"cases": rows, **total})
    else:
        show_errors(rows, total)
    return DONE


# ``spbench project``: times on clusters that are not at hand, and their score.


@click.command("project", cls=HelpPage)
@click.argument("workload", required=False, metavar="[WORKLOAD]")
@options.cluster_option()
@options.strategy_option
@click.option(
    "-g", "--gpus", metavar="N[,N...]", help=f"Numbers of ranks.  {options.RANKS_OF_CLUSTER}"
)
@options.mesh_option
@options.settings_option
@click.option(
    "--axis",
    "lengths",
    metavar="NAME=N[,N...]",
    help="Lengths of an axis, one after another, such as space=1024,4096.",
)
@options.share_option
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
def project_command(
    workload: str | None,
    cluster: str | None,
    strategies: Sequence[str],
    gpus: str | None,
    meshes: Sequence[CaseMesh],
    settings: Sequence[str],
    lengths: str | None,
    share: Path | None,
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
        return print_against(against, cluster, is_beside=is_beside, as_json=as_json)
    if workload is None or cluster is None:
        raise Failure(
            f"name a {'workload' if workload is None else 'cluster'}, as in "
            "'spbench project dsp-720m --cluster hgx-h100 --gpus 8,16'; or give --against"
        )
    sizes = [choose_workload(workload, [*settings, *more]) for more in settings_of(lengths)]
    ranks, plain = rank_counts(gpus or "8"), options.strategies_of(strategies)
    names = [mesh.beside(name) for mesh in meshes for name in plain]
    if share is not None and (compiled or kernel):
        raise Failure("--share measured kernels as they ran; leave out --compiled and --kernel")
    if share is not None and any(mesh.axes for mesh in meshes):
        raise Failure("--share measured strategies that have all ranks; leave out --mesh")
    with loading_torch():
        from spbench.projection.costmodel.cluster_file import find
        from spbench.projection.costmodel.step_time import Mode
    mode, on = Mode(compiled=compiled, attention_kernel=kernel), find(cluster)
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
    sizes: Sequence[Workload],
    cluster: Cluster,
    strategies: Sequence[str],
    ranks: Sequence[int],
    mode: Mode,
    share: Path | None,
    asked: Sequence[str],
    lengths: str = "",
) -> list[Projection]:
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


def _write(projected: Sequence[Projection], folder: Path, mode: Mode) -> None:
    """Writes the rows, and says on stderr what shows them."""
    from spbench.projection.advise.projected_rows import write_rows

    write_rows(projected, folder, mode, sys.argv)
    click.echo(f"rows in {folder}; see them with: {quoted('spbench', 'plot', folder)}", err=True)


# ``spbench recommend``: which plan for a workload on a cluster, and how sure that is.


@click.command("recommend", cls=HelpPage)
@options.workload_argument
@options.cluster_option(required=True)
@click.option(
    "-g", "--gpus", metavar="N[,N...]", help=f"Numbers of ranks.  {options.RANKS_OF_CLUSTER}"
)
@options.strategy_option
@click.option(
    "--fixed",
    type=options.fixed,
    default="",
    metavar="NAME=VALUE[,...]",
    help="What is not searched for: sizes of axes around the strategies, and in training zero and "
    "checkpointing, as in tp=1,zero=2.",
)
@options.share_option
@click.option("--compiled", is_flag=True, help="As under torch.compile, elementwise work fused.")
@options.settings_option
@options.json_option
def recommend_command(
    workload: str,
    cluster: str,
    gpus: str | None,
    strategies: Sequence[str],
    fixed: dict[str, int | str],
    share: Path | None,
    compiled: bool,
    settings: Sequence[str],
    as_json: bool,
) -> int:
    """Say which plan is the fastest for WORKLOAD on a cluster that need not be at hand.

    A plan is a strategy with the sizes of its groups, the mesh around it, and in training what
    ranks share out (zero) and compute again (checkpointing), unless --set or --fixed says that.
    The most promising are run without data, and their kernels and messages get the times of the
    cluster's file, until no other can be faster. The answer comes with the measurement that would
    decide, its values and its command, and with the run that would decide between those that
    are not told apart. On several numbers of ranks it says what more ranks are worth. For a map
    over lengths, see 'spbench project --axis' and 'spbench plot --kind winners'.
    """
    refuse_fault("recommend")
    work, names, counts = _asked(workload, settings, strategies, gpus)
    with loading_torch():
        from spbench.projection.advise.by_ranks import counts_as_data, show_counts
        from spbench.projection.advise.recommend import as_data, recommend, show_advice
        from spbench.projection.costmodel.cluster_file import find
        from spbench.projection.costmodel.step_time import Mode
    if share is not None and (compiled or fixed):
        raise Failure("--share measured kernels as they ran; leave out --compiled and --fixed")
    target, mode = find(cluster), Mode(compiled=compiled)
    counts = counts if gpus else [min(counts[0], target.most_ranks or counts[0])]
    asked = ["-w", workload, *(word for each in settings for word in ("--set", each))]
    fixed = _with_settings(fixed, settings, work)
    compared = () if options.asks_for(strategies, "all", "vendors") else names
    advised, why_not = [], {}
    for count in counts:
        try:
            if share is not None:
                weighed = _with_shares(work, target, names, count, mode, share, asked)
                advised.append(recommend(weighed, target, mode))
            else:
                found = _searched(work, target, names, count, mode, fixed, compared)
                advised.append(recommend(*found))
        except Failure as failure:
            why_not[count] = str(failure)
    if not advised:
        raise Failure(next(iter(why_not.values())))
    named = [*asked, *(["--compiled"] if compiled else [])]
    if len(counts) > 1 and as_json:
        print_json(counts_as_data(advised, why_not, named, mode))
    elif len(counts) > 1:
        show_counts(advised, why_not, named, mode)
    elif as_json:
        print_json(as_data(advised[0], named))
    else:
        show_advice(advised[0], named)
    return DONE


def _with_settings(
    fixed: dict[str, int | str], settings: Sequence[str], work: Workload
) -> dict[str, int | str]:
    """What is fixed, also by ``--set``. Raises Failure where the two differ."""
    given = {each.partition("=")[0].strip() for each in settings}
    of_settings = {name: getattr(work, name) for name in options.SEARCHED if name in given}
    for name, value in of_settings.items():
        if fixed.get(name, value) != value:
            raise Failure(
                f"--fixed {name}={fixed[name]} and --set {name}={value}: give one of the two"
            )
    for name in options.SEARCHED:
        if name in fixed and work.mode != "train":
            raise Failure(f"--fixed {name}={fixed[name]}: mode {work.mode} has no {name}")
    return fixed | of_settings


def _with_shares(
    work: Workload,
    cluster: Cluster,
    names: Sequence[str],
    ranks: int,
    mode: Mode,
    share: Path,
    asked: Sequence[str],
) -> list[Projection]:
    """Strategies that have all ranks, of which the run has a share: of others none is measured."""
    from spbench.projection.advise.candidates import candidates

    weighed = candidates(names, work, ranks)
    projected = project_all([work], cluster, weighed, [ranks], mode, share, asked)
    return [each for each in projected if each.share or each.cost is None]


def _searched(
    work: Workload,
    cluster: Cluster,
    names: Sequence[str],
    ranks: int,
    mode: Mode,
    fixed: dict[str, int | str],
    compared: Sequence[str],
) -> tuple[list[Projection], Cluster, Mode, Searched]:
    """Plans that ran without data, until no other can be the fastest, and one of each strategy that
    is compared in any case; as ``recommend`` takes it. Raises Failure where there is no plan."""
    from spbench.projection.advise.plans import Candidate, plans
    from spbench.projection.advise.project import Projection, project
    from spbench.projection.advise.search import Search
    from spbench.projection.dryrun.rank_work import forked, works

    all_plans = plans(names, work, ranks, fixed)
    search = Search(work, all_plans.candidates, cluster, mode, ranks, compared)
    click.echo(
        stamped(
            f"{DRY_RUNS}: {counted(len(all_plans.candidates), 'plan')}, the most promising first"
        ),
        err=True,
    )
    known = works(cluster.device.runs_on, with_memory=True)

    def runs(candidates: Sequence[Candidate]) -> list[Projection]:
        questions = [(each.workload, each.name, ranks) for each in candidates]
        with forked(known, questions) as work_of:
            done = (
                case
                for each in candidates
                for case in project(each.workload, cluster, [each.name], [ranks], mode, work_of)
            )
            labels = [f"{each.name} on {ranks}" for each in candidates]
            return [*watched(done, labels, DRY_RUNS, is_one_of_many=True)]

    searched = search.run(runs)
    cannot = [
        Projection(workload=work, cluster=cluster, strategy=name, ranks=ranks, why_not=why)
        for name, why in all_plans.why_not.items()
    ]
    return [*searched.projected, *cannot], cluster, mode, searched


def _asked(
    name: str, settings: Sequence[str], strategies: Sequence[str], gpus: str | None
) -> tuple[Workload, list[str], list[int]]:
    """Raises Failure for too many ranks."""
    counts = rank_counts(gpus or "8")
    if max(counts) > MAX_RANKS:
        raise Failure(f"--gpus {gpus}: use numbers of ranks from 1 to {MAX_RANKS}")
    return choose_workload(name, settings), options.strategies_of(strategies), counts
