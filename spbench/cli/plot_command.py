"""``spbench plot``: a run's figures as PNG, SVG or PDF."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from spbench.cli import options
from spbench.cli.help import HelpPage
from spbench.errors import Failure, writing
from spbench.report.tables import print_paths
from spbench.results.capacities import has_capacities
from spbench.results.find_run import (
    RESULTS,
    RUNS,
    Chosen,
    capacities_beside,
    chosen_capacities,
    drawn_beside,
    find_run,
    read_latest,
    reference_of,
    select_rows,
)
from spbench.results.run_json import folder_of_run

if TYPE_CHECKING:
    from spbench.report.plots.frame import Asked
    from spbench.report.plots.pages import Page

CAPACITY = ["capacity"]


class PlotHelp(HelpPage):
    """A help that lists the kinds of figures: they are imported where it is shown alone."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from spbench.report.plots.kinds import KINDS

        super().format_options(ctx, formatter)
        with formatter.section("Kinds of figures"):
            formatter.write_dl([(name, kind.about) for name, kind in KINDS.items()])


@click.command("plot", cls=PlotHelp)
@options.run_argument
@click.option(
    "--out",
    type=options.PATH,
    help=f"Folder.  [default: RUN/plots; of a baseline {RESULTS}/baseline-NAME/plots]",
)
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    metavar="KIND[,KIND...]",
    help="Only these figures, repeated or with commas; also those that are not drawn unasked.",
)
@click.option(
    "--metric", metavar="COLUMN", help="Curves of this figure, such as step_ms.  [tokens_per_s]"
)
@click.option(
    "--x", "x", metavar="COLUMN", help="Over ranks, tokens, batch, an axis or a figure.  [ranks]"
)
@click.option(
    "--facet", metavar="COLUMN", help="A panel for each workload, strategy, batch...  [workload]"
)
@click.option(
    "--format", "formats", default="png,svg", show_default=True, help="Of png, svg and pdf."
)
@options.drawing_options
def plot_command(
    run: Path | None,
    out: Path | None,
    kinds: Sequence[str],
    formats: str,
    page: int,
    baselines: Path,
    as_json: bool,
    metric: str | None,
    x: str | None,
    facet: str | None,
    workloads: Sequence[str],
    strategies: Sequence[str],
    gpus: str | None,
) -> None:
    """Draw the figures of RUN: scaling or throughput, memory, bytes, compute, every iteration.

    RUN is a results directory, a CSV file, baseline:NAME, or by default the latest run.
    Prints the paths. A figure has at most 12 panels; choose others by page, workload, strategy
    or ranks, each repeated or with commas. --metric, --x and --facet draw curves of any figure.
    """
    from spbench.report.plots.figure import save_all
    from spbench.report.plots.frame import Asked

    path, endings, wanted = find_run(run, baselines), _endings(formats), _parts(*kinds)
    given = {"metric": metric, "x": x, "facet": facet}
    chosen = {name: value for name, value in given.items() if value}
    rows = workloads, strategies, [gpus] if gpus else []
    try:
        if not chosen and _has_capacities_alone(path, wanted):
            figures = _of_capacities(path, rows, page)
        else:
            figures = _of_rows(path, rows, page, wanted, Asked(**chosen))
    except ValueError as error:
        raise Failure(str(error)) from None
    for remark in figures.remarks:
        click.echo(remark, err=True)
    folder = out or drawn_beside(path, "plots", baselines)
    with writing(folder):
        files = save_all(figures.sheets, folder, endings)
    print_paths(files, as_json=as_json)


def _has_capacities_alone(run: Path, wanted: Sequence[str]) -> bool:
    """Whether nothing else is asked for, or nothing else is there. Raises Failure where
    capacities are asked for and there are none."""
    folder = folder_of_run(run)
    if {*CAPACITY} & {*wanted} and not has_capacities(folder):
        raise Failure(
            f"{folder} holds no capacities; find them with: "
            f"spbench capacity WORKLOAD --gpus 1,2,4,8 --out {folder}"
        )
    no_rows = folder.is_dir() and not (folder / RUNS).exists()
    return wanted == CAPACITY or (has_capacities(folder) and no_rows and not wanted)


def _of_capacities(run: Path, rows: Chosen, page: int) -> "Page":
    """The figure of a folder that has capacities alone, or is asked for no other."""
    from spbench.report.plots.frame import Run
    from spbench.report.plots.pages import page_of

    found = Run(folder=folder_of_run(run), capacities=chosen_capacities(run, rows))
    return page_of(found, page, CAPACITY)


def _of_rows(run: Path, rows: Chosen, page: int, wanted: Sequence[str], asked: "Asked") -> "Page":
    """The figures of launches, and of capacities beside them."""
    from spbench.analysis.compare_strategies import compare_strategies
    from spbench.report.plots.frame import Run
    from spbench.report.plots.pages import page_of

    frame = select_rows(read_latest(run), *rows)
    capacities, unread = capacities_beside(run, rows)
    if {*CAPACITY} & {*wanted}:
        capacities = chosen_capacities(run, rows)
    found = Run(
        lines=compare_strategies(frame, reference_of(run, frame)),
        launches=frame,
        folder=folder_of_run(run),
        capacities=capacities,
        asked=asked,
    )
    drawn = page_of(found, page, wanted)
    return replace(drawn, remarks=[*drawn.remarks, *unread])


def _endings(formats: str) -> list[str]:
    from spbench.report.plots.figure import FORMATS

    endings = _parts(formats)
    if not endings or set(endings) - set(FORMATS):
        raise Failure(f"--format {formats}: use {', '.join(FORMATS)}, or several with commas")
    return endings


def _parts(*texts: str) -> list[str]:
    return list(dict.fromkeys(filter(None, map(str.strip, ",".join(texts).split(",")))))
