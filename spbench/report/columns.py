"""Texts at given columns of a line, and sentences folded to a width."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from itertools import pairwise

from rich.text import Text

TOTAL = 11  # columns of a total
Placed = tuple[int, str]
"""The column where a text begins, and the text."""


def packed(texts: Iterable[Placed]) -> Text:
    """One line with each text at its column."""
    line = ""
    for at, text in texts:
        line = line.ljust(at) + text
    return Text(line.rstrip())


def has_room(texts: Sequence[Placed]) -> bool:
    """Whether each text ends before the next one begins, with a space between."""
    return all(at + len(text) < after for (at, text), (after, _) in pairwise(texts))


def with_totals(texts: Sequence[Placed], totals: Sequence[str], right: int) -> list[Text]:
    """One line, its totals ending at ``right``; they get a line of their own for want of room."""
    figures = "".join(f" {one}".rjust(TOTAL) for one in totals)
    end = (right - len(figures), figures)
    if has_room([*texts, end]):
        return [packed([*texts, end])]
    return [packed(texts), *([packed([end])] if totals else [])]


def sentence(text: str, width: int, indent: int = 2, *, label: str = "") -> list[Text]:
    """Folded; ``label`` stands before it, within the indent of the first line."""
    first, rest = label.ljust(indent), " " * indent
    lines = textwrap.wrap(text, width, initial_indent=first, subsequent_indent=rest)
    return [Text(line, "dim") for line in lines]
