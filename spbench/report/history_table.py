"""Cases over commits as tables, and the first bad commit of each in words."""

from collections.abc import Sequence

from spbench.analysis.history import Point, Series
from spbench.report import tables, units
from spbench.report.fit_width import Grid, fewer
from spbench.report.run_table import SHARES_NOTE, change_in_words, explained, listed_changes
from spbench.text import counted

HEADS = (
    *("commit", "since (UTC)", "launches", "step ms", "95 %"),
    *("change (95 %, launches)", "verdict", "peak MiB", "sent MiB", "runs"),
)
SPARE = ("runs", "95 %", "sent MiB", "peak MiB", "launches", "since (UTC)")
"""Columns that are left out, in this order, where not all fit."""
DRIFT = (
    "Runs of different hours may differ by the machine's drift alone: confirm a first bad commit "
    "with 'spbench check --base-ref', which launches both alternately."
)


def show_histories(series: Sequence[Series]) -> None:
    """Prints a table for each case and environment, then what was found."""
    out = tables.console()
    for each in series:
        title = f"{each.strategy} on {counted(each.ranks, 'rank')}, {each.panel}"
        tables.say(out, f"{title}; {each.environment}" if each.environment else title)
        rows = [_cells(point) for point in each.points]
        grid = Grid(columns=HEADS, rows=rows, words=(0, 1, 6, 9), wraps=(9,))
        tables.show_fitting(out, fewer(grid, SPARE))
    tables.say(out, *(text for each in series for text in first_bad_in_words(each)))
    if any(each.is_share for each in series):
        tables.say(out, SHARES_NOTE)
    if any("time" in each.worse for each in series):
        tables.say(out, DRIFT)


def first_bad_in_words(series: Series) -> list[str]:
    """The first bad commit of each metric, with the change and the last good one."""
    case = f"{series.strategy} on {counted(series.ranks, 'rank')}"
    if len(series.points) == 1:
        return [f"{case}, {series.environment}: one commit alone, nothing to compare"]
    if not series.worse:
        return [f"{case}, {series.environment}: no commit from which on it is worse"]
    sentences = []
    for metric, at in series.worse.items():
        good, bad = series.points[at - 1 : at + 1]
        finding = next(finding for finding in bad.findings if finding.metric == metric)
        why = explained(finding)
        what = (
            f"{listed_changes([finding])}: first bad commit {bad.commit}, last good {good.commit}"
        )
        sentences.append(f"{what}; {why}" if why else what)
    return sentences


def _cells(point: Point) -> list[str]:
    step, time = point.step_ms, point.time
    interval = f"{units.milliseconds(step.low)}..{units.milliseconds(step.high)}" if step else ""
    if step and not step.is_interval:
        interval = units.BLANK if step.low == step.high else f"{interval}*"
    other = [f for f in point.findings if f.metric != "time" and f.verdict not in ("same", "new")]
    verdicts = [time.verdict] if time else []
    verdicts += [f"{f.metric} {f.verdict}" for f in other]
    return [
        point.commit,
        units.minute(point.since),
        str(point.launches),
        units.milliseconds(step.mean if step else None),
        interval or units.BLANK,
        change_in_words(time) if time else units.BLANK,
        ", ".join(verdicts) or units.BLANK,
        units.mebibytes(point.peak_bytes),
        units.mebibytes(point.sent_bytes),
        ", ".join(run.rpartition("/")[2] for run in point.runs),
    ]
