"""``spbench plot``: a run's figures as PNG, SVG or PDF."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from spbench.cli import options
from spbench.cli.help_page import HelpPage
from spbench.errors import UNFIT, Failure
from spbench.report.tables import print_json
from spbench.results.drawn_beside import drawn_beside
from spbench.results.find_run import RESULTS, find_run, read_latest, reference_of, select_rows
from spbench.results.run_json import folder_of_run


@click.command("plot", cls=HelpPage)
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
@options.filter_options
@click.option(
    "--page", type=click.IntRange(min=1), default=1, help="Page of a figure of more than 12 panels."
)
@options.baselines_option
@options.json_option
def command(
    run: Path | None,
    out: Path | None,
    kinds: Sequence[str],
    metric: str | None,
    x: str | None,
    facet: str | None,
    formats: str,
    workloads: Sequence[str],
    strategies: Sequence[str],
    gpus: str | None,
    page: int,
    baselines: Path,
    as_json: bool,
) -> None:
    """Draw the figures of RUN: scaling or throughput, memory, bytes, compute, every iteration.

    RUN is a results directory, a CSV file, baseline:NAME, or by default the latest run.
    Prints the paths. A figure has at most 12 panels; choose others by page, workload, strategy
    or ranks, each repeated or with commas. Kinds: overview, scaling, throughput, ratios,
    step_split, sent_bytes, memory, pareto, winners, launches. --metric, --x and --facet draw
    curves of any figure.
    """
    path = find_run(run, baselines)
    frame = select_rows(read_latest(path), workloads, strategies, [gpus] if gpus else [])
    from spbench.analysis.compare_strategies import compare_strategies
    from spbench.report.plots.figure import FORMATS, save_all
    from spbench.report.plots.plots import page_of
    from spbench.report.plots.points import Asked

    home = folder_of_run(path)
    folder = out or drawn_beside(path, "plots", baselines)
    endings = _parts(formats)
    if not endings or set(endings) - set(FORMATS):
        raise Failure(f"--format {formats}: use {', '.join(FORMATS)}, or several with commas")
    given = {"metric": metric, "x": x, "facet": facet}
    chosen = {name: value for name, value in given.items() if value}
    try:
        figures = page_of(
            compare_strategies(frame, reference_of(path, frame)),
            frame,
            home,
            page,
            _parts(*kinds),
            Asked(**chosen) if chosen else None,
        )
    except ValueError as error:
        raise Failure(str(error)) from None
    for remark in figures.remarks:
        click.echo(remark, err=True)
    try:
        files = list(map(str, save_all(figures.sheets, folder, endings)))
    except OSError as error:
        raise Failure(f"cannot write to {folder}: {error.strerror}", UNFIT) from None
    if as_json:
        print_json(files)
    else:
        click.echo("\n".join(files))


def _parts(*texts: str) -> list[str]:
    return list(dict.fromkeys(filter(None, map(str.strip, ",".join(texts).split(",")))))
