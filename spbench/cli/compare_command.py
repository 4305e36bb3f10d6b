"""``spbench compare``: the strategies of a run side by side, or one run against another."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from spbench.analysis.compare import MARGIN
from spbench.analysis.compare_runs import compare_runs
from spbench.analysis.compare_strategies import compare_strategies
from spbench.analysis.findings import Margins
from spbench.cli import options
from spbench.cli.options import Percent
from spbench.errors import CANNOT_JUDGE, DONE, Failure
from spbench.report.run_table import show_findings
from spbench.report.strategy_table import show_comparison
from spbench.results.find_run import (
    find_run,
    not_there_yet,
    records_of,
    reference_of,
    traces_of,
)
from spbench.results.run_json import folder_of_run
from spbench.text import counted

MOST_RUNS = 2


@click.command("compare", short_help="Show strategies side by side, or a run against another.")
@click.argument("runs", nargs=-1, metavar="[RUN] [OTHER]", type=click.Path(path_type=Path))
@click.option(
    "--reference",
    metavar="STRATEGY",
    help="Speed-ups are over this one.  [default: the sweep's, or the first]",
)
@click.option(
    "--margin",
    type=Percent(),
    default=f"{MARGIN:.0%}",
    show_default=True,
    help="Times that differ by less are the same.",
)
@click.option(
    "--allow-mismatch",
    is_flag=True,
    help="Show the times of different hardware or libraries, without verdicts.",
)
@options.baselines_option
@options.json_option
def command(
    runs: Sequence[Path],
    reference: str | None,
    margin: float,
    allow_mismatch: bool,
    baselines: Path,
    as_json: bool,
) -> int:
    """Show the strategies of RUN side by side, or OTHER against RUN, case by case.

    A run is a results directory, a CSV file or baseline:NAME; by default it is the latest.
    Bytes are what one rank sends in a step, the largest over the ranks. The gate's error is
    relative, against one device.
    """
    if len(runs) > MOST_RUNS:
        raise Failure(f"compare takes one run or two, not {len(runs)}")
    if len(runs) == MOST_RUNS:
        if reference is not None:
            raise Failure("--reference is for the strategies of one run; leave it out, or a run")
        return _against(runs, margin, allow_mismatch, baselines, as_json)
    found = find_run(runs[0] if runs else None, baselines)
    records = records_of(found)
    try:
        lines = compare_strategies(records, reference or reference_of(found, records), margin)
    except ValueError as error:
        raise Failure(str(error)) from None
    if as_json:
        click.echo(json.dumps([line.as_data() for line in lines], indent=2))
    else:
        show_comparison(lines)
        missing = not_there_yet(found, records)
        if missing:
            are = "that was asked for is" if missing == 1 else "that were asked for are"
            folder = folder_of_run(found)
            is_kept = folder.resolve().is_relative_to(baselines.resolve())
            how = (
                "" if is_kept else f"; the command that asked for them goes on with --out {folder}"
            )
            click.echo(f"{counted(missing, 'launch')} {are} not there yet{how}", err=True)
    return DONE


def _against(
    runs: Sequence[Path], margin: float, allow_mismatch: bool, baselines: Path, as_json: bool
) -> int:
    """The second run against the first; 5 where no case of theirs may be compared."""
    found = [find_run(run, baselines) for run in runs]
    before, after = map(records_of, found)
    traces = traces_of(found[0], before), traces_of(found[1], after)
    margins = Margins(time=margin)
    findings = compare_runs(before, after, margins, allow_mismatch=allow_mismatch, traces=traces)
    if as_json:
        click.echo(json.dumps([asdict(one) | {"ratio": one.ratio} for one in findings], indent=2))
    else:
        for side, run in zip(("A", "B"), runs, strict=True):
            click.echo(f"{side}: {run}")
        show_findings(findings, "A", "B")
    if not any(one.before is not None and one.after is not None for one in findings):
        click.echo("these runs have no case in common", err=True)
        return CANNOT_JUDGE
    figures = [one for one in findings if one.metric != "status"]
    judged = [one for one in figures if one.metric == "time"] or figures
    apart = bool(judged) and all(one.verdict == "not comparable" for one in judged)
    if apart and not allow_mismatch:
        said = "no time can be judged between these runs"
        click.echo(f"{said}; --allow-mismatch shows the figures", err=True)
        return CANNOT_JUDGE
    return DONE
