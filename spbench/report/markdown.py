"""Markdown as code hosts show it: tables, folded parts, warnings, and cases before and after."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from spbench.analysis.case_change import ORDER, CaseChange
from spbench.analysis.findings import Finding
from spbench.report import units
from spbench.report.fit_width import Grid, by_panel
from spbench.report.run_table import change_in_words
from spbench.text import counted


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
