"""``spbench baseline``: keep a run that later runs are checked against."""

from collections.abc import Iterator
from pathlib import Path

import click
import pandas

from spbench.analysis.compare_strategies import compare_strategies
from spbench.analysis.intervals import LEAST_LAUNCHES
from spbench.analysis.power import MOST_OF_CHECK, DetectableSlowdown, hardest_case, quiet_launches
from spbench.analysis.verdict import MAX_SLOWDOWN
from spbench.cli import options
from spbench.cli.help_page import HelpPage
from spbench.errors import UNFIT, Failure, ResultsError
from spbench.report import units
from spbench.report.fit_width import Grid, fewer
from spbench.report.strategy_table import show_comparison
from spbench.report.tables import console, print_json, show_fitting
from spbench.results.baselines import folder_of, keep, names
from spbench.results.find_run import (
    command_again,
    find_baseline,
    find_run,
    not_there_yet,
    read_latest,
    reference_of,
)
from spbench.results.provenance import distinct
from spbench.results.runs_csv import latest, read_runs, records_of
from spbench.text import counted

SPARE = ("torch", "commit", "gpu", "started", "launches", "run")
"""Columns of the list that are left out, in this order, where not all fit."""
WORTH_MORE = 0.8
"""More launches are advised where they lower the detectable slowdown to this share of it."""


@click.group("baseline")
def command() -> None:
    """Keep a run that later runs are checked against.

    A baseline is a small folder to commit: the rows of a run and its run.json.
    """


@command.command("set", cls=HelpPage, short_help="Keep a run under a name.")
@click.argument("name")
@options.run_argument
@click.option(
    "--force",
    is_flag=True,
    help="Keep a run with failed or missing launches, or too few quiet ones.",
)
@click.option("--replace", is_flag=True, help="Replace the baseline of that name.")
@options.baselines_option
def set_command(name: str, run: Path | None, force: bool, replace: bool, baselines: Path) -> None:
    """Keep RUN, a results directory, a CSV file or by default the latest run, as NAME."""
    folder = folder_of(name, baselines)
    if folder.exists() and not replace:
        raise Failure(f"baseline {name!r} exists; --replace puts the run in its place")
    source = find_run(run, baselines)
    frame = read_latest(source)
    doubts = _doubts(source, frame)
    if doubts and not force:
        again = command_again(source) if not_there_yet(source, frame) else ""
        remedy = f"Measure what is missing ({again}), or all anew" if again else "Measure it anew"
        raise Failure(
            f"{source} is not fit for a baseline: {'; '.join(doubts)}.\n"
            f"  {remedy}, or keep it as it is with --force."
        )
    try:
        keep(name, source, records_of(frame), baselines)
    except (ResultsError, OSError) as error:
        raise Failure(f"cannot keep the baseline: {error}", UNFIT) from None
    click.echo(f"{counted(len(frame), 'row')} of {source} are baseline {name!r} in {folder}")
    few = min(quiet_launches(frame).values(), default=0)
    if few < LEAST_LAUNCHES:
        click.echo(
            f"With {counted(few, 'quiet launch')} of a case a check judges bytes and memory; "
            f"time takes {LEAST_LAUNCHES} or more ('spbench run --launches 5').",
            err=True,
        )
    for sentence in _in_words(hardest_case(frame)):
        click.echo(sentence)


def _doubts(run: Path, frame: pandas.DataFrame) -> list[str]:
    """Why a run is not fit for a baseline."""
    good = frame[frame["status"] == "ok"]
    failed = frame[~frame["status"].isin(["ok", "skipped"])]
    lacking = [case for case, quiet in quiet_launches(good).items() if quiet < LEAST_LAUNCHES]
    noisy = good["noisy"][(good["noisy"] != "") & good["case"].isin(lacking)]
    doubts = []
    if len(failed):
        failure = f"{failed['strategy'].iloc[0]}: {failed['status'].iloc[0]}"
        doubts.append(f"{counted(len(failed), 'launch')} failed ({failure})")
    if len(noisy):
        first = "in the first " * (noisy.nunique() > 1) + noisy.iloc[0]
        doubts.append(f"{counted(len(noisy), 'launch')} noisy ({first})")
    if missing := not_there_yet(run, frame):
        doubts.append(f"{counted(missing, 'launch')} not measured yet")
    if good.empty:
        doubts.append("no launch is ok")
    return doubts


def _in_words(slowdown: DetectableSlowdown | None) -> Iterator[str]:
    """The slowdown that a check detects in the noisiest case, and with more launches."""
    if slowdown is None:
        return
    hard = slowdown.record
    share = "" if hard.kind == "measured" else ", one GPU's share"
    yield (
        f"Time is hardest to judge of {hard.strategy} on {counted(hard.world_size, 'rank')} "
        f"({hard.workload}{share}): its {slowdown.launches} launches have a standard deviation of "
        f"{units.percent(slowdown.spread)}."
    )
    yield (
        f"Where the machine stays as it was, a check finds a slowdown of about "
        f"{units.percent(slowdown.slowdown)} there (--max-slowdown {MAX_SLOWDOWN:.0%}, up to "
        f"{MOST_OF_CHECK} launches)."
    )
    if slowdown.with_more < WORTH_MORE * slowdown.slowdown:
        yield (
            f"With {MOST_OF_CHECK} such launches in the baseline, too, it would find about "
            f"{units.percent(slowdown.with_more)}: the same run with --launches {MOST_OF_CHECK}."
        )


@command.command("list", cls=HelpPage)
@options.baselines_option
@options.json_option
def list_command(baselines: Path, as_json: bool) -> None:
    """List the baselines."""
    rows = []
    for name in names(baselines):
        try:
            rows.append(_summary(name, latest(read_runs(folder_of(name, baselines)))))
        except ResultsError as error:
            click.echo(str(error), err=True)
    if as_json:
        print_json(rows)
    elif not rows:
        click.echo(f"no baselines in {baselines}/ yet; 'spbench baseline set NAME' makes one")
    else:
        cells = [[str(value) for value in row.values()] for row in rows]
        grid = Grid(columns=list(rows[0]), rows=cells, words=(0, 1))
        show_fitting(console(), fewer(grid, SPARE))


def _summary(name: str, frame: pandas.DataFrame) -> dict[str, object]:
    """The row of a baseline in the list."""
    launches = frame.loc[frame["status"] == "ok", "case"].value_counts()
    return {
        "baseline": name,
        "run": _each(frame, "run_id"),
        "cases": len(launches),
        "launches": int(launches.min()) if len(launches) else 0,
        "gpu": _each(frame, "gpu"),
        "torch": _each(frame, "torch"),
        "commit": ", ".join(commit[:9] for commit in distinct(frame, "git_commit")),
        "started": min(frame["started_utc"], default=""),
    }


def _each(frame: pandas.DataFrame, column: str) -> str:
    return ", ".join(distinct(frame, column))


@command.command("show", cls=HelpPage, short_help="Show the figures of a baseline.")
@click.argument("name")
@options.baselines_option
@options.json_option
def show_command(name: str, baselines: Path, as_json: bool) -> None:
    """Show the figures of the baseline NAME, strategies side by side."""
    folder = find_baseline(name, baselines)
    frame = read_latest(folder)
    lines = compare_strategies(frame, reference_of(folder, frame))
    if as_json:
        print_json([line.as_data() for line in lines])
        return
    for label, value in _summary(name, frame).items():
        click.echo(f"{label + ':':10s} {value}")
    click.echo(f"{'hardware:':10s} {_each(frame, 'hardware')}")
    show_comparison(lines)
