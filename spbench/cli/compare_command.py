"""``spbench compare``: the strategies of a run side by side."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from spbench.cli import choices
from spbench.cli.exits import Failure
from spbench.cli.runs import find_run, not_there_yet, records_of, reference_of
from spbench.judge.side_by_side import side_by_side
from spbench.report.tables import show_comparison
from spbench.workload.words import counted


@click.command("compare", short_help="Show the strategies of a run side by side.")
@click.argument("run", required=False, type=click.Path(path_type=Path))
@click.option(
    "--reference",
    metavar="STRATEGY",
    help="Speed-ups are over this one.  [default: the sweep's, or the first]",
)
@choices.json_option
def command(run: Path | None, reference: str | None, as_json: bool) -> None:
    """Show the strategies of RUN side by side: a results directory, or the latest.

    Bytes are what one rank sends in a step, the largest over the ranks. The gate's error is
    relative, against one device.
    """
    found = find_run(run)
    records = records_of(found)
    try:
        lines = side_by_side(records, reference or reference_of(found, records))
    except ValueError as error:
        raise Failure(str(error)) from None
    if as_json:
        click.echo(json.dumps([asdict(line) | {"gate": line.gate} for line in lines], indent=2))
    else:
        show_comparison(lines)
        missing = not_there_yet(found, records)
        if missing:
            are = "that was asked for is" if missing == 1 else "that were asked for are"
            click.echo(f"{counted(missing, 'case')} {are} not there yet", err=True)
