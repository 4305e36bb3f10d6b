"""What ``spbench project --against`` prints: measured steps of a run beside their projection."""

from pathlib import Path

import click

from spbench.cli.selection import refuse_flags
from spbench.errors import DONE, Failure
from spbench.report.progress import loading_torch
from spbench.report.projection_table import show_errors
from spbench.report.tables import print_json
from spbench.results.find_run import find_run

OF_PROJECTION = ("strategies", "gpus", "settings", "lengths", "compiled", "kernel", "as_csv")
"""Parameters of ``project`` that choose and print cases, which measurements do themselves."""


def print_against(
    run: Path, cluster: str | None, link_rate: str | None, *, is_beside: bool, as_json: bool
) -> int:
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
        from spbench.projection.costmodel.sensitivity import cluster_at
    cases = beside(measured(find_run(run)), cluster_at(cluster, link_rate))
    rows, total = [each.data for each in cases], judged(cases)
    if as_json:
        print_json({"cases": rows, **total})
    else:
        show_errors(rows, total)
    return DONE
