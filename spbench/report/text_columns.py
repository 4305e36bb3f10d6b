"""Texts at given columns of a line, and sentences folded to a width."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from itertools import pairwise

from rich.text import Text

Placed = tuple[int, str]
"""The column where a text begins, and the text."""


def packed(texts: Iterable[Placed]) -> Text:
    """One line with each text at its column."""
    line = ""
    for at, text in texts:
        line = line.ljust(at) + text
    return Text(line.rstrip())


def has_room(texts: Sequence[Placed], gap: int = 1) -> bool:
    """Whether each text ends ``gap`` spaces before the next one begins."""
    return all(at + len(text) + gap <= after for (at, text), (after, _) in pairwise(texts))


def sentence(text: str, width: int, indent: int = 2, *, label: str = "") -> list[Text]:
    """Folded; ``label`` stands before it, within the indent of the first line."""
    first, rest = label.ljust(indent), " " * indent
    lines = textwrap.wrap(text, width, initial_indent=first, subsequent_indent=rest)
    return [Text(line, "dim") for line in lines]
