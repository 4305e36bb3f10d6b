"""How messages put things: counts, and what a mistyped word was meant to be."""

from __future__ import annotations

import difflib
from collections.abc import Sequence


def counted(count: int, noun: str) -> str:
    """1 rank, 2 ranks, 1,024 ranks, 3 launches."""
    ending = "" if count == 1 else "es" if noun.endswith(("ch", "s", "x")) else "s"
    return f"{count:,} {noun}{ending}"


def did_you_mean(word: str, known: Sequence[str], cutoff: float = 0.65) -> str:
    """The question; empty if nothing is as near as ``cutoff`` or begins with ``word``."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=cutoff)
    close += [one for one in known if len(word) > 2 and one.startswith(word)]
    return f"Did you mean {close[0]!r}?" if close else ""
