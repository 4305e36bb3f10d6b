"""``spbench compare``: the strategies of a run side by side, or one run against another."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click
import pandas

from spbench.analysis.compare import MARGIN
from spbench.analysis.compare_runs import compare_runs
from spbench.analysis.compare_strategies import compare_strategies
from spbench.analysis.findings import Margins
from spbench.analysis.launches import cases_of
from spbench.analysis.verdict import judged
from spbench.cli import completion, options
from spbench.cli.help_page import HelpPage
from spbench.errors import CANNOT_JUDGE, DONE, Failure
from spbench.report import markdown
from spbench.report.markdown import changes_part, strategies_part
from spbench.report.run_table import show_findings
from spbench.report.strategy_table import show_comparison
from spbench.report.tables import print_data
from spbench.results.find_run import find_run, not_there_yet, read_latest, reference_of, way_on
from spbench.results.run_json import folder_of_run
from spbench.text import counted

MOST_RUNS = 2


@click.command("compare", cls=HelpPage)
@click.argument(
    "runs", nargs=-1, metavar="[RUN] [OTHER]", type=options.PATH, shell_complete=completion.runs
)
@click.option(
    "--reference",
    metavar="STRATEGY",
    help="The strategy that speed-ups are relative to.  [default: the sweep's, or the first]",
)
@options.percent_option("--margin", f"{MARGIN:.0%}", "Times that differ by less count as the same.")
@click.option(
    "--allow-mismatch",
    is_flag=True,
    help="Show the times of different hardware or libraries, without verdicts.",
)
@options.baselines_option
@options.json_option
@click.option("--markdown", "as_markdown", is_flag=True, help="Print Markdown on stdout.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV on stdout.")
def command(
    runs: Sequence[Path],
    reference: str | None,
    margin: float,
    allow_mismatch: bool,
    baselines: Path,
    as_json: bool,
    as_markdown: bool,
    as_csv: bool,
) -> int:
    """Show the strategies of RUN side by side, or OTHER against RUN, case by case.

    A run is a results directory, a CSV file or baseline:NAME; by default it is the latest. Bytes
    are what the busiest rank sends in a step. The gate's error is relative, against one device.
    """
    if len(runs) > MOST_RUNS:
        raise Failure(f"compare takes one run or two, not {len(runs)}")
    forms = {"json": as_json, "markdown": as_markdown, "csv": as_csv}
    form = next((name for name, is_given in forms.items() if is_given), "")
    if sum(forms.values()) > 1:
        raise Failure("--json, --markdown and --csv are forms of the same table; give one of them")
    if len(runs) == MOST_RUNS:
        if reference is not None:
            raise Failure("--reference is for the strategies of one run; leave it out, or a run")
        return _against(runs, margin, allow_mismatch, baselines, form)
    run = find_run(runs[0] if runs else None, baselines)
    frame = read_latest(run)
    cases = cases_of(frame)
    try:
        lines = compare_strategies(frame, reference or reference_of(run, frame), margin, cases)
    except ValueError as error:
        raise Failure(str(error)) from None
    if form == "markdown":
        click.echo(markdown.document(strategies_part(lines)), nl=False)
    elif form:
        print_data([line.as_data() for line in lines], form)
    else:
        show_comparison(lines)
        _warn_of_missing(run, frame, baselines)
    return DONE


def _warn_of_missing(run: Path, frame: pandas.DataFrame, baselines: Path) -> None:
    """Prints how many launches are not measured yet, and the command that resumes the run."""
    if missing := not_there_yet(run, frame):
        is_baseline = folder_of_run(run).resolve().is_relative_to(baselines.resolve())
        more = "" if is_baseline else way_on(run)
        click.echo(f"{counted(missing, 'launch')} not measured yet{more}", err=True)


def _against(
    runs: Sequence[Path], margin: float, allow_mismatch: bool, baselines: Path, form: str
) -> int:
    """Shows the second run against the first; exit code 5 where no case may be compared."""
    paths = [find_run(run, baselines) for run in runs]
    before, after = map(read_latest, paths)
    margins = Margins(time=margin)
    findings = compare_runs(before, after, margins, allow_mismatch=allow_mismatch)
    is_common = any(f.before is not None and f.after is not None for f in findings)
    if not is_common:
        click.echo("these runs have no case in common", err=True)
    if form == "markdown":
        click.echo(markdown.document(changes_part(judged(findings, margins))), nl=False)
    elif form:
        print_data([asdict(finding) | {"ratio": finding.ratio} for finding in findings], form)
    else:
        click.echo(f"A: {runs[0]}\nB: {runs[1]}")
        show_findings(findings, "A", "B")
    if not is_common:
        return CANNOT_JUDGE
    figures = [finding for finding in findings if finding.metric != "status"]
    compared = [finding for finding in figures if finding.metric == "time"] or figures
    if {finding.verdict for finding in compared} == {"not comparable"} and not allow_mismatch:
        hint = "no time can be compared between these runs; --allow-mismatch shows the figures"
        click.echo(hint, err=True)
        return CANNOT_JUDGE
    return DONE
