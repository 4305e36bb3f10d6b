"""Cases before and after as tables of Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from spbench.analysis.case_change import ORDER, CaseChange
from spbench.analysis.findings import Finding
from spbench.report import markdown, units
from spbench.report.fit_width import Grid, by_panel
from spbench.report.run_table import change_in_words
from spbench.text import counted

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
        for part in ([f"**{markdown.escaped(panel)}**"], markdown.table(of_panel))
    ]


def _cells(change: CaseChange) -> list[str]:
    known, status = change.findings, change.any
    result = f"**{change.verdict}**" if "fail" in change.grades else change.verdict
    if "accepted" in change.grades:
        result += ", accepted"
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
    more = round(float(finding.after or 0) - float(finding.before or 0))
    if not more:
        return f"{_both(finding, units.mebibytes).split(' ')[0]} (other calls)"
    return f"{_both(finding, units.mebibytes)} ({units.change(finding.ratio)}, {more:+,} B)"


def _gate(status: Finding) -> str:
    if status.gate_error is None:
        return "not run"
    limit = f" of {units.error(status.tolerance)}" if status.tolerance is not None else ""
    is_wrong = status.tolerance is not None and not status.gate_error <= status.tolerance
    return f"{units.error(status.gate_error)}{limit}{' WRONG' if is_wrong else ''}"
