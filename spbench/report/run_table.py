"""Findings between runs: two as a table, one row a case, and in words; and cases over commits."""

from collections.abc import Sequence

from spbench.analysis.compare import Comparison
from spbench.analysis.findings import Finding, Metric
from spbench.analysis.history import Point, Series
from spbench.analysis.launches import on_processors
from spbench.analysis.verdict import Judgement
from spbench.report import tables, units
from spbench.report.fit_width import Grid, fewer, left_out
from spbench.report.strategy_table import NOISY, NOISY_NOTE
from spbench.text import counted, grouped

SHARES_NOTE = (
    "one gpu share: times are what one GPU computes as one rank of many, without messages; they "
    "are no steps"
)
NARROWER = ((), (5,), (2, 3, 5), (2, 3, 4, 5), (2, 3, 4, 5, 8), (2, 3, 4, 5, 7, 8))
"""Columns left out where not all fit: interval, times, change, and what has sentences below."""


def grid_of(findings: Sequence[Finding], before: str, after: str) -> tuple[Grid, list[str]]:
    """A row for each case, and its panel; ``before`` and ``after`` name the two runs."""
    cases: dict[tuple[str, str, int, str], dict[Metric, Finding]] = {}
    for finding in findings:
        case = finding.panel, finding.strategy, finding.ranks, finding.case
        cases.setdefault(case, {})[finding.metric] = finding
    heads = ("strategy", "ranks", f"{before} ms", f"{after} ms", "change", "95 %")
    rows = [[name, str(n), *_cells(of_case)] for (_, name, n, _), of_case in cases.items()]
    grid = Grid(columns=(*heads, "time", "memory", "sent"), rows=rows)
    return grid, [panel for panel, *_ in cases]


def _cells(case: dict[Metric, Finding]) -> list[str]:
    status, time = case["status"], case.get("time")
    shown = [units.BLANK] * 4
    if time is not None:
        before, after = _noise(time)
        change = _change(time.comparison) or units.BLANK
        interval = _interval(time.comparison) or units.BLANK
        shown = [_ms(time.before, before), _ms(time.after, after), change, interval]
    verdict = _verdict(status, time)
    return [*shown, verdict, _exact(case.get("memory")), _exact(case.get("volume"))]


def _verdict(status: Finding, time: Finding | None) -> str:
    """The verdict on a case's time, or how the case ended where that is what changed."""
    if time is not None and status.verdict in ("same", "fixed"):
        return time.verdict
    if status.verdict != "same":
        return status.verdict
    return units.BLANK if status.after == "ok" else "failed"


def _ms(value: float | str | None, noise: str = "") -> str:
    """Milliseconds, marked where noisy launches count; blank of a status."""
    if not isinstance(value, float):
        return units.BLANK
    return f"{NOISY if noise else ''}{units.milliseconds(value)}"


def _noise(finding: Finding) -> tuple[str, str]:
    """What disturbed launches that count, before and after."""
    return finding.comparison.noise if finding.comparison else ("", "")


def _change(times: Comparison | None) -> str:
    """How much longer the case takes, marked where noisy launches count; blank: not known."""
    if times is None or times.ratio is None:
        return ""
    return f"{NOISY if any(times.noise) else ''}{units.change(times.ratio)}"


def _interval(times: Comparison | None) -> str:
    """The interval of the change; blank where there is none, or where noisy launches count: of
    them it would claim more than they tell."""
    if times is None or times.low is None or times.high is None or any(times.noise):
        return ""
    return units.changes(times.low, times.high)


def change_in_words(finding: Finding) -> str:
    """The change of a time with its interval and the launches behind it."""
    times = finding.comparison
    if times is None or times.ratio is None:
        return units.BLANK
    return f"{_change(times)} ({_interval(times) or 'no interval'}, {times.launches})"


def _exact(finding: Finding | None) -> str:
    if finding is None:
        return units.BLANK
    if finding.verdict != "changed" or finding.ratio is None:
        return finding.verdict
    if finding.metric == "memory":
        return f"{units.change(finding.ratio)} changed"
    more = round(float(finding.after or 0) - float(finding.before or 0))
    return f"{more:+,} B changed" if more else f"{finding.changed_unit} changed"


def sentences(findings: Sequence[Finding]) -> list[str]:
    """Reasons, and bytes by phase: what the cells have no room for.

    A reason that many cases share, another GPU say, is one sentence.
    """
    has_panels = len({finding.panel for finding in findings}) > 1
    cases: dict[str, dict[str, list[str]]] = {}  # by reason and panel
    for finding in findings:
        for reason in _reasons(finding):
            cases.setdefault(reason, {}).setdefault(finding.panel, []).append(_case(finding))
    said = []
    for reason, by_panel in cases.items():
        names = [
            f"{panel}: {_listed(of_panel)}" if has_panels else _listed(of_panel)
            for panel, of_panel in by_panel.items()
        ]
        said.append(f"{_listed(names, '; ')}: {reason}")
    if any(any(_noise(finding)) for finding in findings):
        said.append(NOISY_NOTE)
    return said


def _reasons(finding: Finding) -> list[str]:
    """What explains the verdict, and what disturbed launches, where that is not it."""
    reasons = [explained(finding)]
    causes = [cause for cause in _noise(finding) if cause]
    if causes and finding.comparison is not None and not finding.comparison.blames_launches:
        reasons.append(f"too many launches were disturbed: {causes[0]}")
    return [reason for reason in reasons if reason]


def share_notes(findings: Sequence[Finding]) -> list[str]:
    """What the times of shares of one GPU are, where there are some."""
    return [SHARES_NOTE] if any(f.is_share and f.metric == "time" for f in findings) else []


def _case(finding: Finding) -> str:
    return f"{finding.strategy} on {counted(finding.ranks, 'rank')}"


def explained(finding: Finding) -> str:
    """Metric, verdict and why; blank where there is nothing to add."""
    if finding.metric == "memory" and finding.verdict != "same" and finding.ratio is not None:
        before, after = (float(x or 0) for x in (finding.before, finding.after))
        sizes = f"{units.mebibytes(after)} MiB, was {units.mebibytes(before)}"
        why = f"; {finding.reason}" if finding.reason else ""
        return f"memory {finding.verdict}: {sizes} ({units.change(finding.ratio)}){why}"
    if finding.comparison is not None and finding.verdict == "slower":
        return f"{finding.what} slower: {_figures(finding, finding.comparison)}"
    if not finding.reason:
        return ""
    what = "" if finding.metric == "status" else f"{finding.what} "
    times = finding.comparison
    if times is None or times.blames_processors:  # then the reason names their speed
        return f"{what}{finding.verdict}: {finding.reason}"
    how = on_processors(times.processors)
    return f"{what}{finding.verdict}: {finding.reason}{f', {how}' if how else ''}"


def _figures(finding: Finding, times: Comparison) -> str:
    """The time now and before, the change and its interval."""
    if times.low is None or times.high is None:
        return finding.reason
    launches, how = counted(times.launches, "launch"), on_processors(times.processors)
    words = [word for word in (_change(times), _interval(times), launches, how) if word]
    return f"{_ms(finding.after)} ms, was {_ms(finding.before)} ({', '.join(words)})"


def headline(judgement: Judgement, *, strict: bool = False) -> str:
    """The outcome in one line."""
    failed, open_ = judgement.of("fail"), judgement.of("undecided")
    cases = {one.case for one in judgement.findings}
    if failed:
        return f"failed: {listed_changes(failed)}"
    if not judgement.is_comparable:
        return f"cannot judge: {_why_not_comparable(judgement.findings)}"
    times = f"time inconclusive in {counted(len(open_), 'case')}"
    if open_ and strict:
        return f"cannot judge: {times}"
    bare = len(cases - {one.case for one in judgement.findings if one.metric != "status"})
    lacking = f", {bare} of them without figures on both sides" if bare else ""
    return f"passed: {counted(len(cases), 'case')}{lacking}{f', {times}' if open_ else ''}"


def listed_changes(findings: Sequence[Finding]) -> str:
    """Cases with what changed and by how much, as ``dsp on 2 ranks (time +10.0 %)``."""
    cases = grouped(findings, _case).items()
    what = {name: dict.fromkeys(map(_what_changed, of_case)) for name, of_case in cases}
    return _listed([f"{name} ({', '.join(each)})" for name, each in what.items()])


def _what_changed(finding: Finding) -> str:
    """The metric with its change, or the verdict of a status."""
    if finding.metric == "status":
        return finding.verdict
    if finding.ratio and units.is_change(finding.ratio):
        return f"{finding.what} {units.change(finding.ratio)}"
    return finding.what


def _why_not_comparable(findings: Sequence[Finding]) -> str:
    """The first figure or case without a counterpart; and what could be judged."""
    apart = [finding for finding in findings if finding.verdict == "not comparable"]
    if not apart:
        is_missing = any(finding.verdict == "missing" for finding in findings)
        return "a case is missing" if is_missing else "no case has figures on both sides"
    first = apart[0]
    why = f"{first.what} of {_case(first)}: {first.reason}"
    if any(finding.metric == "volume" for finding in apart):
        return why
    return f"{why}; bytes alone can be judged anywhere (--metrics volume)"


def _listed(names: Sequence[str], between: str = ", ") -> str:
    return between.join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def show_findings(findings: Sequence[Finding], before: str, after: str) -> None:
    """Prints a table for each panel, then what the cells have no room for."""
    out = tables.console()
    whole, panels = grid_of(findings, before, after)
    grids = [whole.without(*(whole.columns[i] for i in gone)) for gone in NARROWER]
    lacks = tables.show_panels(out, grids, panels)
    said = [*sentences(findings), *share_notes(findings)]
    tables.say(out, *said, *([left_out(lacks)] if lacks else []))


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
        rows = [_point_cells(point) for point in each.points]
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


def _point_cells(point: Point) -> list[str]:
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
