"""``spbench check``: fail on a regression, for CI."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from spbench.analysis.findings import METRICS, Margins, Metric
from spbench.analysis.verdict import LAUNCHES, MAX_SLOWDOWN
from spbench.cli import options
from spbench.cli.help_page import HelpPage
from spbench.cli.option_types import Count
from spbench.cli.selection import (
    SELECTING,
    refuse_flags,
    repeated_flags,
    request_of,
    selection_options,
)
from spbench.errors import REGRESSION, Failure
from spbench.launch.launcher import Deadlines
from spbench.regression.base_and_head import Checked, CheckOptions
from spbench.regression.check import against_baseline, against_commit, against_run
from spbench.regression.check_report import Export, check_writable, junit, report
from spbench.report.markdown import block_of_changes
from spbench.text import did_you_mean, quoted
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
def command(ctx: click.Context, /, **flags: Any) -> int:
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
