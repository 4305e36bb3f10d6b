"""What ``spbench project --against`` prints: measurements beside their projection."""

from pathlib import Path

import click

from spbench.cli.selection import refuse_flags
from spbench.errors import DONE, Failure
from spbench.report.progress import loading_torch
from spbench.report.projection_table import show_errors, show_scores
from spbench.report.tables import print_json
from spbench.results.find_run import find_run

PACKAGED = "packaged"
"""Value of --against that stands for the packaged measurements."""

OF_PROJECTION = ("strategies", "gpus", "settings", "lengths", "compiled", "kernel", "as_csv")
"""Parameters of ``project`` that choose and print cases, which measurements do themselves."""


def print_against(
    place: str, cluster: str | None, link_rate: str | None, *, is_beside: bool, as_json: bool
) -> int:
    """Prints measurements beside their projection: published ones, or with a cluster a run's.

    ``is_beside``: whether flags were given that choose what to project.
    """
    context, why = click.get_current_context(), "which says what is projected; leave it out"
    refuse_flags(context, OF_PROJECTION, f"cannot be given with --against, {why}")
    if place != PACKAGED and cluster and not is_beside:
        return _against_run(Path(place), cluster, link_rate, as_json=as_json)
    if cluster or is_beside:
        raise Failure(
            "--against names workloads and clusters itself; leave those, --out and --share. "
            "Only a run's folder needs the --cluster that its machine was calibrated as"
        )
    refuse_flags(
        context, ("link_rate",), "cannot be given with published measurements; leave it out"
    )
    if (Path(place) / "runs.csv").exists():
        raise Failure(f"{place}: a run; name with --cluster what its machine was calibrated as")
    from spbench.projection.published import default_folder, read

    points = read(default_folder() if place == PACKAGED else Path(place))
    with loading_torch():
        from spbench.layers.kernels import norms_of_single_operations
        from spbench.projection.against import score
        from spbench.projection.dryrun.rank_work import works
        from spbench.projection.score import summary
    with norms_of_single_operations():
        work_of = works()
        groups = [score(point, work_of) for point in points]
    total = summary(groups)
    if as_json:
        print_json({"groups": groups, **total})
    else:
        show_scores(groups, total)
    return DONE


def _against_run(run: Path, cluster: str, link_rate: str | None, *, as_json: bool) -> int:
    """Prints measured steps of a run beside their projection to the cluster."""
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
