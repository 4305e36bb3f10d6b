"""Markdown as code hosts show it: its forms, then the block for a pull request.

The block says what changed, by how much, how sure that is, and where. A reader may see nothing
else: the verdict stands in the headline, changed cases before the others, and beside each what
explains it.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from spbench.analysis.compare_strategies import Line
from spbench.analysis.findings import METRICS, Finding, Margins, Metric
from spbench.analysis.verdict import ORDER, UNCHANGED, CaseChange, Judgement, case_changes
from spbench.report import units
from spbench.report.fit_width import Grid, by_panel
from spbench.report.run_table import change_in_words, listed_changes, sentences, share_notes
from spbench.report.strategy_table import (
    OF_STEPS,
    failures,
    gate_sentences,
    has_shares_alone,
    mark_notes,
    ranking_sentences,
    rows_of,
)
from spbench.report.units import percent
from spbench.results.provenance import Provenance, differences
from spbench.text import counted, grouped


def table(grid: Grid) -> list[str]:
    """The lines of a table; a heading stands in one line."""
    rule = [":---" if i in grid.words else "---:" for i in range(len(grid.columns))]
    heads = [" ".join(head.split()) for head in grid.columns]
    return [row(heads), f"|{'|'.join(rule)}|", *map(row, grid.rows)]


def row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(map(escaped, cells))} |"


def escaped(text: str) -> str:
    """The text as it is read, whatever characters it holds; stars and backquotes keep their use."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("~", "\\~").replace("\n", " ")


def bullets(sentences: Iterable[str]) -> list[str]:
    return [f"- {escaped(sentence)}" for sentence in sentences]


def warning(sentences: Sequence[str]) -> list[str]:
    """A banner with a sentence a line; nothing without a sentence."""
    return ["> [!WARNING]", *(f"> {escaped(text)}  " for text in sentences)] if sentences else []


def folded(summary: str, lines: Sequence[str]) -> list[str]:
    """A part that opens when its summary is clicked."""
    return [f"<details><summary>{escaped(summary)}</summary>", "", *lines, "", "</details>"]


def commands(lines: Iterable[str]) -> list[str]:
    return ["```console", *(f"$ {line}" for line in lines), "```"]


def document(parts: Iterable[Sequence[str]]) -> str:
    """Parts with a blank line between them; empty parts are left out."""
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


HEADS = (
    *("strategy", "ranks", "result", "step ms", "change (95 %, launches)", "culprit"),
    *("sent MiB a step", "peak MiB", "gate error"),
)


def count_line(changes: Sequence[CaseChange]) -> str:
    """The cases by their verdicts, as ``3 cases: 1 slower, 2 same``."""
    counts = Counter(change.verdict for change in changes)
    known = [f"{counts[name]} {name}" for name in ORDER if counts[name]]
    return f"{counted(len(changes), 'case')}: {', '.join(known)}"


def change_tables(changes: Sequence[CaseChange]) -> list[list[str]]:
    """A title and a table for each panel."""
    rows = [_cells(change) for change in changes]
    panels = [change.any.panel for change in changes]
    return tables_by_panel(Grid(columns=HEADS, rows=rows, words=(0, 2, 5)), panels)


def tables_by_panel(grid: Grid, panels: Sequence[str]) -> list[list[str]]:
    """A title and a table for each panel; ``panels``: the panel of each row."""
    return [
        part
        for panel, of_panel in by_panel(grid, panels).items()
        for part in ([f"**{escaped(panel)}**"], table(of_panel))
    ]


def _cells(change: CaseChange) -> list[str]:
    known, status = change.findings, change.any
    result = f"**{change.verdict}**" if "fail" in change.grades else change.verdict
    time = known.get("time")
    return [
        status.strategy,
        str(status.ranks),
        result,
        _both(time, units.milliseconds) if time else units.BLANK,
        change_in_words(time) if time else units.BLANK,
        change.culprit or units.BLANK,
        _exact(known.get("volume")),
        _exact(known.get("memory")),
        _gate(status),
    ]


def _both(finding: Finding, unit: Callable[[float | None], str]) -> str:
    before, after = finding.before, finding.after
    known = [unit(value) for value in (before, after) if not isinstance(value, str)]
    return " → ".join(known) or units.BLANK


def _exact(finding: Finding | None) -> str:
    """A figure that both have, or what it was and is; and by how much it differs."""
    if finding is None:
        return units.BLANK
    if finding.verdict != "changed" or finding.ratio is None:
        after = finding.after if isinstance(finding.after, int | float) else None
        return units.mebibytes(after) if after is not None else finding.verdict
    before, after = float(finding.before or 0), float(finding.after or 0)
    if not round(after - before):
        return f"{units.mebibytes(after)} (other calls)"
    more = f"{units.change(finding.ratio)}, {round(after - before):+,} B"
    return f"{_both(finding, units.mebibytes)} ({more})"


def _gate(status: Finding) -> str:
    if status.gate_error is None:
        return "not run"
    limit = f" of {units.error(status.tolerance)}" if status.tolerance is not None else ""
    is_wrong = status.tolerance is not None and not status.gate_error <= status.tolerance
    return f"{units.error(status.gate_error)}{limit}{' WRONG' if is_wrong else ''}"


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
    return document(
        [
            [f"### {escaped(title)}"],
            warning(_environment_sentences(judgement, base, head)),
            *changes_part(judgement),
            _origins({base_name: base, head_name: head}),
            [LEGEND.format(time=percent(margins.time), memory=percent(margins.memory)) + FIGURES],
            ["**Not judged**", "", *bullets(left)] if left else [],
            _again(commands),
        ]
    )


def changes_part(judgement: Judgement) -> list[list[str]]:
    """A line of counts, the cases that changed, what cells have no room for; then the others."""
    changes = case_changes(judgement)
    shown = [change for change in changes if change.verdict not in UNCHANGED]
    return [
        [count_line(changes)],
        *change_tables(shown),
        bullets([*_remarks(shown), *share_notes(judgement.findings)]),
        _folded([change for change in changes if change.verdict in UNCHANGED]),
    ]


def block_of_run(lines: Sequence[Line], run: Provenance, again: str) -> str:
    """A run without another: its strategies side by side, and where it comes from."""
    workloads = ", ".join(dict.fromkeys(line.workload for line in lines))
    parts = [*strategies_part(lines), _origins({run.run: run}), _again([run.command, again])]
    return document([[f"### {escaped(f'spbench compare: {workloads}')}"], *parts])


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
    grid = Grid(columns=heads, rows=rows_of(lines, heads))
    tables = tables_by_panel(grid, [line.panel for line in lines])
    remarks = [*ranking_sentences(lines), *failures(lines), *gate_sentences(lines)]
    remarks += mark_notes(lines)
    return [*tables, bullets(remarks), [FIGURES]]


def _remarks(changes: Sequence[CaseChange]) -> list[str]:
    """What the cells of the cases that changed have no room for."""
    return sentences(
        [
            finding
            for change in changes
            for finding in change.findings.values()
            if not _is_told_elsewhere(finding)
        ]
    )


def _is_told_elsewhere(finding: Finding) -> bool:
    """Whether the banner says why there is no verdict, or a cell how much slower or larger."""
    if finding.verdict == "not comparable":
        return True
    is_slower = finding.metric == "time" and finding.verdict == "slower"
    return is_slower or (finding.metric == "memory" and finding.verdict == "changed")


def _folded(changes: Sequence[CaseChange]) -> list[str]:
    """The cases without a change, out of the way."""
    if not changes:
        return []
    lines = document(change_tables(changes)).splitlines()
    return folded(f"{counted(len(changes), 'case')} without a change", lines)


def _again(lines: Sequence[str]) -> list[str]:
    """The commands that repeat what was measured; blank ones are not known."""
    known = [line for line in lines if line]
    return ["This repeats it:", "", *commands(known)] if known else []


def _environment_sentences(judgement: Judgement, base: Provenance, head: Provenance) -> list[str]:
    """The differences of the environments, and what could not be compared, and why."""
    differ = differences(base, head)
    said = [f"**Environments differ**: {'; '.join(differ)}."] if differ else []
    unlike = [finding for finding in judgement.findings if finding.verdict == "not comparable"]
    for reason, findings in grouped(unlike, lambda finding: finding.reason).items():
        metrics = " and ".join(dict.fromkeys(finding.what for finding in findings))
        cases = counted(len({finding.case for finding in findings}), "case")
        said.append(f"The {metrics} of {cases} cannot be compared: {reason}.")
    return said


def _origins(sides: dict[str, Provenance]) -> list[str]:
    """A column for each side: where its rows come from."""
    rows = [[name, *(str(getattr(side, name)) for side in sides.values())] for name in ORIGIN]
    return table(Grid(columns=["", *sides], rows=rows, words=range(len(sides) + 1)))


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
