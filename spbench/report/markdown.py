"""Markdown as code hosts show it: tables, folded parts, warnings, commands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from spbench.report.fit_width import Grid


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
