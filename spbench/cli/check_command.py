"""``spbench check``: fail on a regression, for CI."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from spbench.analysis.findings import METRICS, Margins, Metric
from spbench.analysis.verdict import LAUNCHES, MAX_SLOWDOWN, Judgement
from spbench.cli import options
from spbench.cli.selection import SELECTING, refuse_flags, request_of, selection_options
from spbench.errors import Failure
from spbench.launch.launcher import Deadlines
from spbench.regression.check import against_baseline, against_commit, against_run
from spbench.regression.check_report import Export, check_writable, report
from spbench.regression.measurement import CheckOptions
from spbench.report.exports import junit, markdown
from spbench.sweep.fault_check import planted_fault
from spbench.text import did_you_mean

MOST_LAUNCHES = 100
JUDGED = METRICS[1:]
"""That a case fails where it did not is always judged."""


@click.command("check", short_help="Fail on a regression: against a baseline, or another commit.")
@click.argument("run", required=False, type=click.Path(path_type=Path))
@click.option("--baseline", metavar="NAME", help="What to check against.")
@click.option("--base-ref", metavar="REV", help="Or a commit, measured in turn with this tree.")
@click.option(
    "--max-slowdown",
    type=options.Percent(),
    default=f"{MAX_SLOWDOWN:.0%}",
    show_default=True,
    help="A step may take so much longer.",
)
@click.option(
    "--max-memory",
    type=options.Percent(),
    default="1%",
    show_default=True,
    help="A rank may hold so much more.",
)
@click.option(
    "--metrics",
    default="time,memory,volume",
    show_default=True,
    help="What is judged; without time one launch is enough.",
)
@click.option(
    "--launches",
    type=click.IntRange(1, MOST_LAUNCHES),
    default=LAUNCHES,
    show_default=True,
    help="Of each case, whatever --sweep says; four times as many where time is in doubt.",
)
@click.option("--strict", is_flag=True, help="What stays inconclusive ends with 5, not with 0.")
@click.option("--markdown", "markdown_to", type=click.Path(path_type=Path), metavar="FILE")
@click.option("--junit", "junit_to", type=click.Path(path_type=Path), metavar="FILE")
@options.baselines_option
@selection_options
@options.device_option
@options.timeout_option
@options.hang_option
@click.option("--out", type=click.Path(path_type=Path), help="Results directory, a new one.")
@options.json_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    run: Path | None,
    baseline: str | None,
    base_ref: str | None,
    max_slowdown: float,
    max_memory: float,
    metrics: str,
    launches: int,
    strict: bool,
    markdown_to: Path | None,
    junit_to: Path | None,
    baselines: Path,
    timeout: float,
    hang_after: float,
    out: Path | None,
    as_json: bool,
    **_: Any,
) -> int:
    """Fail on a regression: exit 4, and say which strategy, metric and phase.

    With --baseline NAME the cases of the baseline are measured anew, or RUN is judged as it
    is. With --base-ref REV that commit and this tree are measured in turn; -s, -g, -w, --set
    and --sweep say which cases.

    Bytes and calls must be equal and memory within its margin. Time fails where the interval
    of its ratio is beyond the margin, and stays there when corrected for the number of cases
    and looks; what would fail or stays open is measured again, up to four times the launches.
    Exit 5: cannot judge.
    """
    limits = CheckOptions(
        margins=Margins(time=max_slowdown, memory=max_memory),
        metrics=_parse_metrics(metrics),
        launches=launches,
        deadlines=Deadlines(launch_s=timeout, hang_s=hang_after),
    )
    exports = _exports(markdown_to, junit_to, strict=strict)
    if (baseline is None) == (base_ref is None):
        raise Failure("check needs one of --baseline NAME and --base-ref REV, and only one")
    if base_ref is not None:
        if run is not None:
            raise Failure("--base-ref measures both sides itself; leave RUN out")
        judgement = against_commit(base_ref, request_of(ctx), limits)
    else:
        assert baseline is not None
        why = "is for --base-ref; a baseline says itself which cases it has"
        refuse_flags(ctx, [*SELECTING, "device"], why)
        judgement = _with_baseline(ctx, baseline, baselines, run, limits, out)
    against = base_ref or str(baseline)
    return report(judgement, against, strict=strict, as_json=as_json, exports=exports)


def _exports(
    markdown_to: Path | None, junit_to: Path | None, *, strict: bool
) -> dict[Path, Export]:
    """Files that are wanted. Raises Failure where one cannot be written."""
    wanted = ((markdown_to, markdown), (junit_to, partial(junit, strict=strict)))
    exports: dict[Path, Export] = {file: export for file, export in wanted if file is not None}
    places = {file.absolute() for file in exports}
    if len(places) < sum(file is not None for file, _ in wanted):
        raise Failure(f"--markdown and --junit would both write {junit_to}; name two files")
    for file in exports:
        check_writable(file)
    return exports


def _with_baseline(
    ctx: click.Context,
    name: str,
    baselines: Path,
    run: Path | None,
    limits: CheckOptions,
    out: Path | None,
) -> Judgement:
    if run is not None:
        refuse_flags(
            ctx,
            ("launches", "timeout", "hang_after", "out"),
            "is for measuring; RUN is judged as it is",
        )
        return against_run(name, baselines, run, limits)
    planted_fault()
    return against_baseline(name, baselines, limits, out)


def _parse_metrics(text: str) -> tuple[Metric, ...]:
    """Names with commas. Raises Failure for what is none."""
    found = [part.strip() for part in text.split(",")]
    for name in found:
        if name not in JUDGED:
            known = ", ".join(JUDGED)
            hint = did_you_mean(name, JUDGED) or f"There are: {known}"
            raise Failure(f"--metrics {text}: {name!r} is no metric. {hint}")
    return tuple(name for name in JUDGED if name in found)
