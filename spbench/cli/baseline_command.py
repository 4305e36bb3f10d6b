"""``spbench baseline``: keep a run as what later ones are checked against."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import click

from spbench.analysis.compare_strategies import compare_strategies
from spbench.analysis.intervals import LEAST_LAUNCHES
from spbench.analysis.power import hardest_case, quiet_launches
from spbench.cli import options
from spbench.errors import UNFIT, Failure, ResultsError
from spbench.report.fit_width import Grid, fewer
from spbench.report.power_text import findable_in_words
from spbench.report.strategy_table import show_comparison
from spbench.report.tables import console, show_fitting
from spbench.results.baselines import folder_of, keep, names
from spbench.results.find_run import (
    command_again,
    find_baseline,
    find_run,
    not_there_yet,
    records_of,
    reference_of,
)
from spbench.results.reading import read_rows
from spbench.results.record import Record
from spbench.text import counted

SPARE = ("torch", "commit", "gpu", "started", "launches", "run")
"""Columns of the list that go where not all fit, in this order."""


@click.group("baseline", short_help="Keep a run as what later ones are checked against.")
def command() -> None:
    """Keep a run as what later ones are checked against.

    A baseline is a small folder, fit to be committed: the rows of a run and its run.json.
    """


@command.command("set", short_help="Keep a run under a name.")
@click.argument("name")
@click.argument("run", required=False, type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Also if launches failed, were noisy or are missing.")
@click.option("--replace", is_flag=True, help="In place of the baseline of that name.")
@options.baselines_option
def set_command(name: str, run: Path | None, force: bool, replace: bool, baselines: Path) -> None:
    """Keep RUN, a results directory, a CSV file or by default the latest run, as NAME."""
    try:
        folder = folder_of(name, baselines)
    except ResultsError as error:
        raise Failure(str(error)) from None
    if folder.exists() and not replace:
        raise Failure(f"baseline {name!r} is there already; --replace puts the run in its place")
    found = find_run(run, baselines)
    records = records_of(found)
    doubts = _doubts(found, records)
    if doubts and not force:
        raise Failure(
            f"{found} is not fit for a baseline: {'; '.join(doubts)}.\n  {_remedy(found, records)}"
        )
    try:
        keep(name, found, records, baselines)
    except (ResultsError, OSError) as error:
        raise Failure(f"cannot keep the baseline: {error}", UNFIT) from None
    click.echo(f"{counted(len(records), 'row')} of {found} are baseline {name!r} in {folder}")
    few = min(quiet_launches(records).values(), default=0)
    if few < LEAST_LAUNCHES:
        click.echo(
            f"With {counted(few, 'quiet launch')} of a case it judges bytes and memory; "
            f"time takes {LEAST_LAUNCHES} or more ('spbench run --launches 5').",
            err=True,
        )
    for sentence in findable_in_words(hardest_case(records)):
        click.echo(sentence)


def _doubts(run: Path, records: Sequence[Record]) -> list[str]:
    """Why a run is not fit, in words."""
    failed = [one for one in records if one.status not in ("ok", "skipped")]
    noisy = [one for one in records if one.status == "ok" and one.noisy]
    missing = not_there_yet(run, records)
    said = []
    if failed:
        first = failed[0]
        said.append(f"{counted(len(failed), 'launch')} failed ({first.strategy}: {first.status})")
    if noisy:
        said.append(f"{counted(len(noisy), 'launch')} noisy ({noisy[0].noisy})")
    if missing:
        said.append(f"{counted(missing, 'launch')} not there yet")
    if not any(record.status == "ok" for record in records):
        said.append("no launch is ok")
    return said


def _remedy(run: Path, records: Sequence[Record]) -> str:
    """What would make it fit, or take it as it is."""
    again = command_again(run) if not_there_yet(run, records) else ""
    missing = f"Measure what is missing ({again}), or all anew" if again else "Measure it anew"
    return f"{missing}, or take it as it is with --force."


def _launches(records: Sequence[Record]) -> list[int]:
    """How many good launches each case has."""
    return list(Counter(record.case for record in records if record.status == "ok").values())


@command.command("list", short_help="The baselines there are.")
@options.baselines_option
@options.json_option
def list_command(baselines: Path, as_json: bool) -> None:
    """The baselines there are."""
    rows = []
    for name in names(baselines):
        try:
            rows.append(_summary(name, read_rows(folder_of(name, baselines)).latest()))
        except ResultsError as error:
            click.echo(str(error), err=True)
    if as_json:
        click.echo(json.dumps(rows, indent=2))
    elif not rows:
        click.echo(f"no baselines in {baselines}/ yet; 'spbench baseline set NAME' makes one")
    else:
        cells = [[str(value) for value in row.values()] for row in rows]
        grid = Grid(columns=list(rows[0]), rows=cells, words=(0, 1))
        show_fitting(console(), fewer(grid, SPARE))


def _summary(name: str, records: Sequence[Record]) -> dict[str, object]:
    """A baseline in a row."""

    def each(column: str) -> str:
        return ", ".join(dict.fromkeys(str(v) for r in records if (v := getattr(r, column))))

    launches = _launches(records)
    return {
        "baseline": name,
        "run": each("run_id"),
        "cases": len(launches),
        "launches": min(launches, default=0),
        "gpu": each("gpu"),
        "torch": each("torch"),
        "commit": ", ".join(one[:9] for one in each("git_commit").split(", ")),
        "started": min((record.started_utc for record in records), default=""),
    }


@command.command("show", short_help="A baseline's figures.")
@click.argument("name")
@options.baselines_option
@options.json_option
def show_command(name: str, baselines: Path, as_json: bool) -> None:
    """The figures of the baseline NAME, strategies side by side."""
    folder = find_baseline(name, baselines)
    records = records_of(folder)
    lines = compare_strategies(records, reference_of(folder, records))
    if as_json:
        click.echo(json.dumps([line.as_data() for line in lines], indent=2))
        return
    for label, value in _summary(name, records).items():
        click.echo(f"{label + ':':10s} {value}")
    hardware = dict.fromkeys(record.hardware for record in records if record.hardware)
    click.echo(f"{'hardware:':10s} {', '.join(hardware)}")
    show_comparison(lines)
