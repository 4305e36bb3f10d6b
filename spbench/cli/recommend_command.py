"""``spbench recommend``: which strategy for a workload on a cluster, and how sure that is."""

from collections.abc import Sequence
from pathlib import Path

import click

from spbench.cli import options
from spbench.cli.help_page import HelpPage
from spbench.cli.project_command import project_all
from spbench.cli.selection import choose_workload, rank_counts
from spbench.errors import DONE, Failure
from spbench.report.progress import loading_torch
from spbench.report.tables import print_json
from spbench.worker.fault_injection import refuse_fault
from spbench.workload.case import MAX_RANKS
from spbench.workload.workload import Workload


@click.command("recommend", cls=HelpPage)
@options.workload_argument
@options.cluster_option(required=True)
@click.option("-g", "--gpus", metavar="N", help=f"Number of ranks.  {options.RANKS_OF_CLUSTER}")
@options.strategy_option
@options.share_option
@options.link_rate_option
@click.option("--compiled", is_flag=True, help="As under torch.compile, elementwise work fused.")
@options.settings_option
@options.json_option
def command(
    workload: str,
    cluster: str,
    gpus: str | None,
    strategies: Sequence[str],
    share: Path | None,
    link_rate: str | None,
    compiled: bool,
    settings: Sequence[str],
    as_json: bool,
) -> int:
    """Say which strategy is the fastest for WORKLOAD on a cluster that need not be at hand.

    Each strategy, with each size of its groups, is run without data, and its kernels and messages
    get the times of the cluster's file. The answer comes with what it hinges on, and with the
    command that would decide between those that are not told apart. For a map
    over lengths, see 'spbench project --axis' and 'spbench plot --kind winners'.
    """
    refuse_fault("recommend")
    work, names, counts = _asked(workload, settings, strategies, gpus)
    with loading_torch():
        from spbench.projection.advise.candidates import candidates
        from spbench.projection.advise.recommend import as_data, recommend, show_advice
        from spbench.projection.costmodel.sensitivity import cluster_at
        from spbench.projection.costmodel.step_time import Mode
    if share is not None and compiled:
        raise Failure("--share measured kernels as they ran; leave out --compiled")
    target, mode = cluster_at(cluster, link_rate), Mode(compiled=compiled)
    counts = counts if gpus else min(counts, target.most_ranks or counts)
    asked = ["-w", workload, *(word for each in settings for word in ("--set", each))]
    weighed = candidates(names, work, counts)
    projected = project_all([work], target, weighed, [counts], mode, share, asked)
    if share is not None:
        projected = [each for each in projected if each.share or each.cost is None]
    found = recommend(projected, target, mode)
    named = None if compiled else asked
    if as_json:
        print_json(as_data(found, named))
    else:
        show_advice(found, named)
    return DONE


def _asked(
    name: str, settings: Sequence[str], strategies: Sequence[str], gpus: str | None
) -> tuple[Workload, list[str], int]:
    """Raises Failure for several numbers of ranks, and for too many."""
    counts = rank_counts(gpus or "8")
    if len(counts) > 1 or counts[0] > MAX_RANKS:
        raise Failure(f"--gpus {gpus}: one number of ranks, from 1 to {MAX_RANKS}")
    return choose_workload(name, settings), options.strategies_of(strategies), counts[0]
