"""Findings between two runs as a table, one row a case: for a terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from spbench.analysis.compare import Comparison
from spbench.analysis.findings import Finding, Metric
from spbench.analysis.power import MOST_OF_CHECK, DetectableSlowdown
from spbench.analysis.verdict import MAX_SLOWDOWN, Judgement
from spbench.report import tables, units
from spbench.report.fit_width import Grid, fitting, left_out
from spbench.text import counted


def columns(before: str, after: str) -> tuple[str, ...]:
    """Heads of the table; ``before`` and ``after`` name the sides."""
    return ("strategy", "ranks", f"{before} ms", f"{after} ms", "change", "95 %", *METRIC_HEADS)


METRIC_HEADS = ("time", "memory", "sent")
NARROWER = ((), (5,), (2, 3, 5), (2, 3, 4, 5), (2, 3, 4, 5, 8), (2, 3, 4, 5, 7, 8))
"""Columns that are left out where not all fit: the interval, the sides, the change, and what has
sentences of its own below the table."""
WORTH_MORE = 0.8
"""More launches are advised where the slowdown that they find is at most this share of it."""


def panels(findings: Sequence[Finding]) -> Iterator[tuple[str, list[list[str]]]]:
    """Title and rows of each panel."""
    for panel in dict.fromkeys(finding.panel for finding in findings):
        cases: dict[tuple[str, int, str], dict[Metric, Finding]] = {}
        for one in findings:
            if one.panel == panel:
                cases.setdefault((one.strategy, one.ranks, one.case), {})[one.metric] = one
        yield panel, [[name, str(n), *_cells(case)] for (name, n, _), case in cases.items()]


def _cells(case: dict[Metric, Finding]) -> list[str]:
    status, time = case["status"], case.get("time")
    memory, volume = (case.get(name) for name in ("memory", "volume"))
    shown = [_ms(time.before), _ms(time.after), *_change(time)] if time else [units.BLANK] * 4
    if time and status.verdict in ("same", "fixed"):
        said = time.verdict
    else:
        said = "failed" if status.verdict == "same" and status.after != "ok" else status.verdict
        said = units.BLANK if said == "same" else said
    return [*shown, said, _exact(memory), _exact(volume)]


def _ms(value: float | str | None) -> str:
    return units.milliseconds(value if isinstance(value, float) else None)


def _change(finding: Finding) -> list[str]:
    """How much longer, and the interval of that."""
    found = finding.comparison
    if found is None or found.ratio is None:
        return [units.BLANK] * 2
    span = units.BLANK
    if found.low is not None and found.high is not None:
        span = units.changes(found.low, found.high)
    return [units.change(found.ratio), span]


def _exact(finding: Finding | None) -> str:
    if finding is None:
        return units.BLANK
    if finding.verdict != "changed" or finding.ratio is None:
        return finding.verdict
    if finding.metric == "memory":
        return f"{units.change(finding.ratio)} changed"
    more = round(float(finding.after or 0) - float(finding.before or 0))
    what = "bytes" if " bytes, was" in finding.reason else "calls"
    return f"{more:+,} B changed" if more else f"{what} changed"


def sentences(findings: Sequence[Finding]) -> list[str]:
    """What the table's words leave out: reasons, and bytes by phase."""
    several = len({finding.panel for finding in findings}) > 1
    reasons: dict[str, list[str]] = {}
    for one in findings:
        where = f"{one.panel}: " if several else ""
        if said := explained(one):
            whom = f"{where}{one.strategy} on {counted(one.ranks, 'rank')}"
            reasons.setdefault(said, []).append(whom)
    # A reason that many cases share, another GPU say, is said once.
    return [f"{_listed(who)}: {why}" for why, who in reasons.items()]


def explained(finding: Finding) -> str:
    """Metric, verdict and why; blank where there is nothing to add."""
    if finding.metric == "memory" and finding.verdict != "same" and finding.ratio is not None:
        before, after = (float(x or 0) for x in (finding.before, finding.after))
        said = f"{units.mebibytes(after)} MiB, was {units.mebibytes(before)}"
        why = f"; {finding.reason}" if finding.reason else ""
        return f"memory {finding.verdict}: {said} ({units.change(finding.ratio)}){why}"
    if finding.comparison is not None and finding.verdict == "slower":
        return f"time slower: {_figures(finding, finding.comparison)}"
    what = "" if finding.metric == "status" else f"{finding.metric} "
    return f"{what}{finding.verdict}: {finding.reason}" if finding.reason else ""


def _figures(finding: Finding, found: Comparison) -> str:
    """What it takes now and took, and by how much that is longer."""
    if found.ratio is None or found.low is None or found.high is None:
        return finding.reason
    span = units.changes(found.low, found.high)
    said = f"{_ms(finding.after)} ms, was {_ms(finding.before)}"
    return f"{said} ({units.change(found.ratio)}, {span}, {counted(found.launches, 'launch')})"


def headline(judgement: Judgement, *, strict: bool = False) -> str:
    """The outcome in one line."""
    failed, open_ = judgement.of("fail"), judgement.of("undecided")
    cases = {one.case for one in judgement.findings}
    if failed:
        what = {
            f"{one.strategy} on {counted(one.ranks, 'rank')} "
            f"({one.verdict if one.metric == 'status' else one.metric})": None
            for one in failed
        }
        return f"failed: {_listed([*what])}"
    if not judgement.is_comparable:
        return f"cannot judge: {_why_not_comparable(judgement.findings)}"
    times = f"time inconclusive in {counted(len(open_), 'case')}"
    if open_ and strict:
        return f"cannot judge: {times}"
    bare = len(cases - {one.case for one in judgement.findings if one.metric != "status"})
    lacking = f", {bare} of them without figures on both sides" if bare else ""
    return f"passed: {counted(len(cases), 'case')}{lacking}{f', {times}' if open_ else ''}"


def _why_not_comparable(findings: Sequence[Finding]) -> str:
    """The first figure, or case, that has no counterpart; and what could be judged."""
    apart = [one for one in findings if one.verdict == "not comparable"]
    if not apart:
        is_missing = any(one.verdict == "missing" for one in findings)
        return "a case is missing" if is_missing else "no case has figures on both sides"
    first = apart[0]
    said = f"{first.metric} of {first.strategy} on {counted(first.ranks, 'rank')}: {first.reason}"
    if any(one.metric == "volume" for one in apart):
        return said
    return f"{said}; bytes alone can be judged anywhere (--metrics volume)"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def show_findings(findings: Sequence[Finding], before: str, after: str) -> None:
    """On stdout: a table for each panel, then what its words leave out."""
    out = tables.console()
    every = list(panels(findings))
    heads = columns(before, after)
    whole = Grid(columns=heads, rows=[row for _, rows in every for row in rows])
    choices = [whole.without(*(heads[i] for i in gone)) for gone in NARROWER]
    lacks = fitting(choices, tables.room(out)).lacks
    for panel, rows in every:
        tables.show_table(out, panel, Grid(columns=heads, rows=rows).without(*lacks))
    for said in [*sentences(findings), *([left_out(lacks)] if lacks else [])]:
        tables.say(out, said)


def slowdown_in_words(found: DetectableSlowdown | None) -> Iterator[str]:
    """What a check finds in the hardest case, and whether more launches would find less."""
    if found is None:
        return
    hard = found.record
    share = "" if hard.kind == "measured" else ", one GPU's share"
    yield (
        f"Time is hardest to judge of {hard.strategy} on {counted(hard.world_size, 'rank')} "
        f"({hard.workload}{share}): its {found.launches} launches have a standard deviation of "
        f"{units.percent(found.spread)}."
    )
    yield (
        f"Where the machine stays as it was, a check finds a slowdown of about "
        f"{units.percent(found.slowdown)} there (--max-slowdown {MAX_SLOWDOWN:.0%}, up to "
        f"{MOST_OF_CHECK} launches)."
    )
    if found.with_more < WORTH_MORE * found.slowdown:
        yield (
            f"With {MOST_OF_CHECK} such launches in the baseline, too, it would find about "
            f"{units.percent(found.with_more)}: the same run with --launches {MOST_OF_CHECK}."
        )
