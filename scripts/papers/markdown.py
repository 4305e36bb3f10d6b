"""Tables in Markdown, and figures in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table, a line for each row."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def brief(value: float) -> str:
    """Three digits, larger numbers whole."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
