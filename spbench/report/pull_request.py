"""Blocks of Markdown for a pull request: what changed, by how much, how sure that is, and where.

A reader may see nothing else: the verdict stands in the headline, changed cases before the others,
and beside each what explains it.
"""

from collections.abc import Sequence

from spbench.analysis.case_change import UNCHANGED, CaseChange, case_changes
from spbench.analysis.findings import METRICS, Margins, Metric
from spbench.analysis.strategy_line import Line
from spbench.analysis.verdict import Judgement
from spbench.report import markdown
from spbench.report.fit_width import Grid
from spbench.report.run_table import listed_changes, sentences, share_notes
from spbench.report.strategy_table import (
    COLUMNS,
    OF_STEPS,
    failures,
    gate_sentences,
    has_shares_alone,
    mark_notes,
    ranking_sentences,
)
from spbench.report.units import percent
from spbench.results.provenance import Provenance, differences
from spbench.text import counted, grouped

ALONE = (
    *("strategy", "ranks", "step ms", "95 %", "speed-up", "compute ms", "exposed ms"),
    *("peak MiB", "sent MiB", "gate error"),
)
"""Columns of a run without another."""
ORIGIN = ("commit", "machine", "libraries", "launches", "started")
FIGURES = (
    "Bytes are what the busiest rank sends in a step; errors are relative, against one device."
)
LEGEND = (
    "Arrows lead from base to head. A change of a time is the ratio of its launches with its 95 % "
    "interval; bold fails with margins of {time} for time and {memory} for memory, where bytes and "
    "calls must be equal. The culprit is the part of the step that makes up most of the change: "
    "compute is the step without communication, exposed what communication adds to it. "
)


def block_of_changes(
    title: str,
    judgement: Judgement,
    sides: tuple[Provenance, Provenance],
    commands: Sequence[str],
    margins: Margins,
    metrics: Sequence[Metric] = METRICS,
) -> str:
    """Head against base; ``metrics`` are those that were judged, with these ``margins``."""
    base, head = sides
    base_name, head_name = f"base: {base.run}", f"head: {head.run}"
    if base.run == head.run:  # a check has measured both in one
        base_name, head_name = "base", "head"
    left = _not_judged(case_changes(judgement), metrics)
    return markdown.document(
        [
            [f"### {markdown.escaped(title)}"],
            markdown.warning(_environment_sentences(judgement, base, head)),
            *changes_part(judgement),
            _origins({base_name: base, head_name: head}),
            [LEGEND.format(time=percent(margins.time), memory=percent(margins.memory)) + FIGURES],
            ["**Not judged**", "", *markdown.bullets(left)] if left else [],
            _again(commands),
        ]
    )


def changes_part(judgement: Judgement) -> list[list[str]]:
    """A line of counts, the cases that changed, what cells have no room for; then the others."""
    changes = case_changes(judgement)
    shown = [change for change in changes if change.verdict not in UNCHANGED]
    return [
        [markdown.count_line(changes)],
        *markdown.change_tables(shown),
        markdown.bullets([*_remarks(shown), *share_notes(judgement.findings)]),
        _folded([change for change in changes if change.verdict in UNCHANGED]),
    ]


def block_of_run(title: str, lines: Sequence[Line], run: Provenance) -> str:
    """A run without another: its strategies side by side, and where it comes from."""
    parts = [*strategies_part(lines), _origins({run.run: run}), _again([run.command])]
    return markdown.document([[f"### {markdown.escaped(title)}"], *parts])


def changes_in_words(judgement: Judgement) -> str:
    """Cases that are worse, and cases that are better, as a headline."""
    better = [f for f in judgement.findings if f.verdict in ("faster", "fixed")]
    parts = {"worse": judgement.of("fail"), "better": better}
    words = [f"{name}: {listed_changes(them)}" for name, them in parts.items() if them]
    if words:
        return "; ".join(words)
    if not judgement.is_comparable:
        return "not all of it can be compared"
    open_ = judgement.of("undecided")
    return f"time inconclusive in {counted(len(open_), 'case')}" if open_ else "no change is shown"


def strategies_part(lines: Sequence[Line]) -> list[list[str]]:
    """The strategies of a run side by side: a table a panel, and the sentences below it."""
    left_out = OF_STEPS if has_shares_alone(lines) else ()
    heads = [name for name in ALONE if name not in left_out]
    cells = [[COLUMNS[name](line) for name in heads] for line in lines]
    for line, row in zip(lines, cells, strict=True):
        row[2] = row[2] if line.status == "ok" else line.status
    tables = markdown.tables_by_panel(
        Grid(columns=heads, rows=cells), [line.panel for line in lines]
    )
    remarks = [*ranking_sentences(lines), *failures(lines), *gate_sentences(lines)]
    remarks += mark_notes(lines)
    return [*tables, markdown.bullets(remarks), [FIGURES]]


def _remarks(changes: Sequence[CaseChange]) -> list[str]:
    """What the cells of the cases that changed have no room for."""
    of_cases = [finding for change in changes for finding in change.findings.values()]
    in_cells = {("time", "slower"), ("memory", "changed")}
    return sentences(
        [
            finding
            for finding in of_cases
            if finding.verdict != "not comparable"
            and (finding.metric, finding.verdict) not in in_cells
        ]
    )


def _folded(changes: Sequence[CaseChange]) -> list[str]:
    """The cases without a change, out of the way."""
    if not changes:
        return []
    lines = markdown.document(markdown.change_tables(changes)).splitlines()
    return markdown.folded(f"{counted(len(changes), 'case')} without a change", lines)


def _again(commands: Sequence[str]) -> list[str]:
    """The commands that repeat what was measured."""
    known = [command for command in commands if command]
    return ["This repeats it:", "", *markdown.commands(known)] if known else []


def _environment_sentences(judgement: Judgement, base: Provenance, head: Provenance) -> list[str]:
    """The differences of the environments, and what was therefore not compared."""
    unlike = [finding for finding in judgement.findings if finding.verdict == "not comparable"]
    reasons = grouped(unlike, lambda finding: finding.reason)
    apart = []
    for reason, findings in reasons.items():
        metrics = " and ".join(dict.fromkeys(finding.what for finding in findings))
        cases = counted(len({finding.case for finding in findings}), "case")
        apart.append(f"The {metrics} of {cases} cannot be compared: {reason}.")
    differ = [word for word in differences(base, head) if word not in " ".join(apart)]
    return [f"**Environments differ**: {'; '.join(differ)}."] * bool(differ) + apart


def _origins(sides: dict[str, Provenance]) -> list[str]:
    """A column for each side: where its rows come from."""
    rows = [[name, *(str(getattr(side, name)) for side in sides.values())] for name in ORIGIN]
    return markdown.table(Grid(columns=["", *sides], rows=rows, words=range(len(sides) + 1)))


def _not_judged(changes: Sequence[CaseChange], metrics: Sequence[Metric]) -> list[str]:
    """What the verdict does not cover, and why."""
    why = {
        "inconclusive": "its time is inconclusive, for the reason below the table",
        "new": "there is nothing to compare it with",
        "missing": "it was not measured now",
        "failed as before": "it has no figures on either side",
        "not judged": "no figure of it is known on both sides",
    }
    cases: dict[str, list[str]] = {}
    for change in changes:
        if change.verdict in why:
            case = f"{change.any.strategy} on {counted(change.any.ranks, 'rank')}"
            cases.setdefault(change.verdict, []).append(case)
    left = [f"{', '.join(names)}: {why[verdict]}" for verdict, names in cases.items()]
    out = [name for name in METRICS if name != "status" and name not in metrics]
    ungated = [c.any.strategy for c in changes if c.any.gate_error is None]
    left += [f"{', '.join(out)}: left out by --metrics"] if out else []
    return left + ([f"{', '.join(ungated)}: the gate was not run"] if ungated else [])
