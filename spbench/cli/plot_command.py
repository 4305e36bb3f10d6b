"""``spbench plot``: a run's figures as PNG and SVG."""

from __future__ import annotations

from pathlib import Path

import click

from spbench.cli.exits import UNFIT, Failure
from spbench.cli.runs import find_run, records_of
from spbench.judge.side_by_side import side_by_side


@click.command("plot", short_help="Draw a run's figures as PNG and SVG.")
@click.argument("run", required=False, type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="Folder.  [default: RUN/plots]")
def command(run: Path | None, out: Path | None) -> None:
    """Draw the figures of RUN: throughput, memory, sent bytes, compute against exposed.

    RUN is a results directory, a CSV file, or by default the latest run. Prints the paths.
    """
    found = find_run(run)
    records = records_of(found)
    from spbench.report.plots import draw_all

    folder = out or (found if found.is_dir() else found.parent) / "plots"
    try:
        drawn = list(draw_all(side_by_side(records), records, folder))
    except OSError as error:
        raise Failure(f"cannot write to {folder}: {error.strerror}", UNFIT) from None
    for path in drawn:
        click.echo(path)
