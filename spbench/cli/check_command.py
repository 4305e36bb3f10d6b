"""``spbench check``: fail on a regression, for CI."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import pandas

from spbench.analysis.compare_strategies import compare_strategies
from spbench.analysis.findings import METRICS, Margins, Metric
from spbench.analysis.intervals import LEAST_LAUNCHES
from spbench.analysis.power import MOST_OF_CHECK, DetectableSlowdown, hardest_case, quiet_launches
from spbench.analysis.verdict import LAUNCHES, MAX_SLOWDOWN
from spbench.cli import options
from spbench.cli.help import HelpPage
from spbench.cli.options import Count, refuse_flags, repeated_flags
from spbench.cli.selection import SELECTING, request_of, selection_options
from spbench.errors import REGRESSION, UNFIT, Failure, ResultsError
from spbench.launch.launcher import Deadlines
from spbench.regression.base_and_head import Checked, CheckOptions
from spbench.regression.check import against_baseline, against_commit, against_run
from spbench.regression.check_report import Export, check_writable, junit, report
from spbench.report import units
from spbench.report.fit_width import Grid, fewer
from spbench.report.markdown import block_of_changes
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
from spbench.text import counted, did_you_mean, quoted
from spbench.worker.fault_injection import planted_fault

MOST_LAUNCHES = 100
JUDGED = METRICS[1:]
"""The values of --metrics; a case that fails and did not before is always a regression."""


def _export_option(flag: str, kind: str) -> Callable[[options.F], options.F]:
    name, help_ = f"{flag[2:]}_to", f"Also write the verdict as {kind}."
    return click.option(flag, name, type=options.PATH, metavar="FILE", help=help_)


@click.command("check", cls=HelpPage)
@options.run_argument
@click.option("--baseline", metavar="NAME", help="The baseline to check against.")
@click.option("--base-ref", metavar="REV", help="The commit to measure beside this tree.")
@options.percent_option("--max-slowdown", f"{MAX_SLOWDOWN:.0%}", "Allowed growth of a step's time.")
@options.percent_option("--max-memory", "1%", "Allowed growth of the peak memory of a rank.")
@click.option(
    "--metrics",
    metavar="NAME[,NAME...]",
    default="time,memory,volume",
    help="Metrics to judge; without time one launch is enough.",
)
@click.option(
    "--launches",
    type=Count(1, MOST_LAUNCHES),
    default=LAUNCHES,
    help="Launches of each case, whatever --sweep says; up to four times as many in doubt.",
)
@click.option("--strict", is_flag=True, help="Exit with 5 if a case stays inconclusive.")
@_export_option("--markdown", "Markdown")
@_export_option("--junit", "JUnit XML")
@options.baselines_option
@selection_options
@options.device_option
@options.deadline_options
@click.option("--out", type=options.PATH, help="A new folder for the results.")
@options.json_option
@click.pass_context
def check_command(ctx: click.Context, /, **flags: Any) -> int:
    """Fail on a regression: exit with 4, and name the strategy, metric and phase.

    With --baseline NAME the cases of the baseline are measured anew, or RUN is judged as it
    is. With --base-ref REV that commit and this tree are launched alternately; -s, -g, -w, --set
    and --sweep say which cases.

    Bytes and calls must be equal and memory within its margin. Time fails where the whole
    confidence interval of its ratio is beyond the margin, also when corrected for the number
    of cases and looks; a case that would fail or is inconclusive is measured again, up to four
    times the launches. Exit code 5: cannot judge.
    """
    settings = CheckOptions(
        margins=Margins(time=flags["max_slowdown"], memory=flags["max_memory"]),
        metrics=_parse_metrics(flags["metrics"]),
        launches=flags["launches"],
        deadlines=Deadlines(launch_s=flags["timeout"], hang_s=flags["hang_after"]),
    )
    exports = _exports(ctx, settings)
    base_ref, baseline = flags["base_ref"], flags["baseline"]
    if (baseline is None) == (base_ref is None):
        raise Failure("check needs one of --baseline NAME and --base-ref REV, and only one")
    if base_ref is None:
        checked = _with_baseline(ctx, settings)
    elif flags["run"] is None:
        checked = against_commit(base_ref, request_of(ctx), settings)
    else:
        raise Failure("--base-ref measures base and head itself; leave RUN out")
    code = report(
        checked,
        base_ref or baseline,
        strict=flags["strict"],
        as_json=flags["as_json"],
        exports=exports,
    )
    if code == REGRESSION and baseline is not None:
        where = repeated_flags(ctx, ("baselines",))
        replace = quoted("spbench", "baseline", "set", baseline, checked.head, "--replace", *where)
        click.echo(f"if the change is meant, make it the baseline: {replace}", err=True)
    return code


def _exports(ctx: click.Context, settings: CheckOptions) -> dict[Path, Export]:
    """The files to write, and their writers. Raises Failure where a file cannot be written."""
    flags = ctx.params
    markdown_to, junit_to = flags["markdown_to"], flags["junit_to"]
    if markdown_to and junit_to and markdown_to.absolute() == junit_to.absolute():
        raise Failure(f"--markdown and --junit would both write {junit_to}; name two files")
    judged_as = repeated_flags(ctx, ("max_slowdown", "max_memory", "metrics", "baselines"))
    again = [] if flags["run"] is None else [flags["run"], *judged_as]
    as_markdown = partial(_markdown, settings=settings, again=again)
    wanted = ((markdown_to, as_markdown), (junit_to, partial(junit, strict=flags["strict"])))
    exports: dict[Path, Export] = {file: export for file, export in wanted if file is not None}
    for file in exports:
        check_writable(file)
    return exports


def _markdown(
    checked: Checked,
    against: str,
    headline: str,
    *,
    settings: CheckOptions,
    again: Sequence[object],
) -> str:
    """The check as a block for a pull request. ``again``: RUN and the flags that judged it."""
    sides = checked.origins()
    commands = [sides[1].command]
    commands += [quoted("spbench", "check", "--baseline", against, *again)] if again else []
    title = f"spbench check: {headline}"
    return block_of_changes(
        title, checked.judgement, sides, commands, settings.margins, settings.metrics
    )


def _with_baseline(ctx: click.Context, settings: CheckOptions) -> Checked:
    """Measures the cases of the baseline anew, or judges RUN as it is."""
    flags = ctx.params
    why = "is for --base-ref; the cases of a baseline are those that it holds"
    refuse_flags(ctx, [*SELECTING, "device"], why)
    name, baselines, run, out = (flags[x] for x in ("baseline", "baselines", "run", "out"))
    if run is not None:
        why = "is for measuring; RUN is judged as it is"
        refuse_flags(ctx, ("launches", "timeout", "hang_after", "out"), why)
        return against_run(name, baselines, run, settings)
    planted_fault()
    return against_baseline(name, baselines, settings, out)


def _parse_metrics(text: str) -> tuple[Metric, ...]:
    """The metrics that ``text`` names, separated by commas. Raises Failure for an unknown one."""
    chosen = [part.strip() for part in text.split(",")]
    for name in chosen:
        if name not in JUDGED:
            hint = did_you_mean(name, JUDGED) or f"There are: {', '.join(JUDGED)}"
            raise Failure(f"--metrics {text}: {name!r} is not a metric. {hint}")
    return tuple(name for name in JUDGED if name in chosen)


# ``spbench baseline``: keep a run that later runs are checked against.

SPARE = ("torch", "commit", "gpu", "started", "launches", "run")
"""Columns of the list that are left out, in this order, where not all fit."""
WORTH_MORE = 0.8
"""More launches are advised where they lower the detectable slowdown to this share of it."""


@click.group("baseline")
def baseline_command() -> None:
    """Keep a run that later runs are checked against.

    A baseline is a small folder to commit: the rows of a run and its run.json.
    """


@baseline_command.command("set", cls=HelpPage, short_help="Keep a run under a name.")
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
        which = "in the first " if noisy.nunique() > 1 else ""
        first = f"{which}{noisy.iloc[0]}"
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
    hard = slowdown.row
    share = "" if hard["kind"] == "measured" else ", one GPU's share"
    case = f"{hard['strategy']} on {counted(hard['world_size'], 'rank')}"
    yield (
        f"Time is hardest to judge of {case} ({hard['workload']}{share}): its {slowdown.launches} "
        f"launches have a standard deviation of {units.percent(slowdown.spread)}."
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


@baseline_command.command("list", cls=HelpPage)
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


@baseline_command.command("show", cls=HelpPage, short_help="Show the figures of a baseline.")
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
