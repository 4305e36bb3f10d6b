"""``spbench compare``: the strategies of a run side by side, or one run against another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click
import pandas

from spbench.analysis.compare import MARGIN
from spbench.analysis.compare_runs import compare_runs
from spbench.analysis.compare_strategies import compare_strategies
from spbench.analysis.findings import Margins
from spbench.analysis.history import Series, histories
from spbench.analysis.launches import cases_of
from spbench.analysis.verdict import judged
from spbench.cli import help, options
from spbench.cli.help import HelpPage
from spbench.cli.options import repeated_flags
from spbench.errors import CANNOT_JUDGE, DONE, Failure, writing
from spbench.report.markdown import block_of_changes, block_of_run, changes_in_words
from spbench.report.run_table import show_findings, show_histories
from spbench.report.strategy_table import show_comparison
from spbench.report.tables import print_data, print_json, print_paths
from spbench.results.find_run import (
    RESULTS,
    capacities_beside,
    drawn_beside,
    find_run,
    kept_rows,
    not_there_yet,
    read_latest,
    reference_of,
    select_rows,
    way_on,
)
from spbench.results.provenance import UNKNOWN, Provenance, provenance
from spbench.results.run_json import folder_of_run
from spbench.text import counted, quoted

MOST_RUNS = 2


@click.command("compare", cls=HelpPage)
@click.argument(
    "runs", nargs=-1, metavar="[RUN] [OTHER]", type=options.PATH, shell_complete=help.runs
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
@click.option(
    "--markdown", "as_markdown", is_flag=True, help="Print a block of Markdown for a pull request."
)
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV on stdout.")
@click.pass_context
def compare_command(
    ctx: click.Context,
    /,
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
    --markdown prints a block for a pull request, with commits, machines and commands.
    """
    if len(runs) > MOST_RUNS:
        raise Failure(f"compare takes one run or two, not {len(runs)}")
    forms = {"json": as_json, "markdown": as_markdown, "csv": as_csv}
    form = next((name for name, is_given in forms.items() if is_given), "")
    if sum(forms.values()) > 1:
        raise Failure("--json, --markdown and --csv are forms of the same table; give one of them")
    shaping = repeated_flags(ctx, ("reference", "margin", "allow_mismatch", "baselines"))
    if len(runs) == MOST_RUNS:
        if reference is not None:
            raise Failure("--reference is for the strategies of one run; leave it out, or a run")
        return _against(runs, Margins(time=margin), allow_mismatch, baselines, form, shaping)
    run = find_run(runs[0] if runs else None, baselines)
    frame = read_latest(run)
    cases = cases_of(frame)
    try:
        lines = compare_strategies(frame, reference or reference_of(run, frame), margin, cases)
    except ValueError as error:
        raise Failure(str(error)) from None
    if form == "markdown":
        again = quoted("spbench", "compare", *(runs or [run]), *shaping)
        click.echo(block_of_run(lines, provenance(run, frame), again), nl=False)
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
    runs: Sequence[Path],
    margins: Margins,
    allow_mismatch: bool,
    baselines: Path,
    form: str,
    shaping: Sequence[str],
) -> int:
    """Shows the second run against the first.

    Parameters
    ----------
    runs : the two, as they were named on the command line
    margins : relative differences that count as none
    allow_mismatch : whether times of different hardware or libraries are shown
    baselines : the folder in which ``baseline:NAME`` is looked up
    form : json, csv, markdown, or blank for tables
    shaping : the flags that shape what is shown, to be named in Markdown

    Returns
    -------
    The exit code: 5 where no case may be compared.
    """
    paths = [find_run(run, baselines) for run in runs]
    before, after = map(read_latest, paths)
    findings = compare_runs(before, after, margins, allow_mismatch=allow_mismatch)
    is_common = any(f.before is not None and f.after is not None for f in findings)
    if not is_common:
        click.echo("these runs have no case in common", err=True)
    if form == "markdown":
        judgement = judged(findings, margins)
        origins = provenance(paths[0], before), provenance(paths[1], after)
        measured = [_command_of(side) for side in origins if side.command]
        again = [*measured, quoted("spbench", "compare", *runs, *shaping)]
        title = f"spbench compare: {changes_in_words(judgement)}"
        click.echo(block_of_changes(title, judgement, origins, again, margins), nl=False)
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


# ``spbench report``: a run as one page of HTML.

ENDINGS = (".html", ".htm")


@click.command("report", cls=HelpPage)
@options.run_argument
@click.option(
    "--out",
    type=options.PATH,
    metavar="FILE",
    help="The page.  [default: RUN/report.html; of a baseline "
    f"{RESULTS}/baseline-NAME/report.html]",
)
@options.drawing_options
def report_command(
    run: Path | None,
    out: Path | None,
    workloads: Sequence[str],
    strategies: Sequence[str],
    gpus: str | None,
    page: int,
    baselines: Path,
    as_json: bool,
) -> None:
    """Write RUN as one page of HTML that needs nothing else, to be opened, sent or printed.

    RUN is a results directory, a CSV file, baseline:NAME, or by default the latest run. The page
    has the answer in words, tables that sort and filter, every figure, how and where it was
    measured, each case that failed and why, and the command that repeats it. Prints its path.
    """
    path = find_run(run, baselines)
    if out is not None and out.suffix.lower() not in ENDINGS:
        raise Failure(f"--out {out}: the report is HTML; name a file that ends in {ENDINGS[0]}")
    whole = read_latest(path)
    chosen = workloads, strategies, [gpus] if gpus else []
    frame, (capacities, unread) = select_rows(whole, *chosen), capacities_beside(path, chosen)
    from spbench.report.page.run_page import html_of_run

    for remark in unread:
        click.echo(remark, err=True)
    file = out or drawn_beside(path, "report.html", baselines)
    try:
        text = html_of_run(path, whole, frame, capacities, page)
    except ValueError as error:
        raise Failure(str(error)) from None
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    print_paths([file], as_json=as_json)


# ``spbench history``: a case over commits, and the first one where it got worse.


@click.command("history", cls=HelpPage)
@options.filter_options
@options.percent_option("--margin", f"{MARGIN:.0%}", "Times that differ by less count as the same.")
@click.option(
    "--out", type=options.PATH, default=RESULTS / "history", help="Folder of the picture."
)
@options.baselines_option
@options.json_option
def history_command(
    workloads: Sequence[str],
    strategies: Sequence[str],
    gpus: str | None,
    margin: float,
    out: Path,
    baselines: Path,
    as_json: bool,
) -> None:
    """Show cases over commits, of all runs that are kept, and the first bad commit of each.

    Runs are those under results/ and results/archive/, and the baselines. Commits are ordered by
    their dates in git, others by their first launch. Each is compared with the one before it, on
    the same hardware and libraries alone; it is the first bad one if it is worse and all later
    ones are worse, too. Writes a picture as PNG and SVG.
    """
    rows = kept_rows(baselines)
    if rows.empty:
        raise Failure(f"no runs under {RESULTS}/ or {baselines}/ yet; start one with 'spbench run'")
    chosen = select_rows(rows, workloads, strategies, [gpus] if gpus else [])
    series = histories(chosen, Margins(time=margin))
    if as_json:
        print_json([asdict(each) for each in series])
        return
    show_histories(series)
    for file in _drawn(series, out):
        click.echo(file)


def _drawn(series: Sequence[Series], folder: Path) -> list[Path]:
    """The picture's files; none where no case was timed."""
    from spbench.report.plots.figure import save
    from spbench.report.plots.kinds import history_sheet

    sheet = history_sheet(series)
    if not sheet.panels:
        return []
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        return save(sheet, folder / "history")


def _command_of(side: Provenance) -> str:
    """The command that measured a run, and at which commit where that is known."""
    return side.command if side.commit == UNKNOWN else f"{side.command}  # at {side.commit}"
