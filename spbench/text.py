"""Words of messages: counts with their nouns, and a suggestion for a mistyped word."""

from __future__ import annotations

import difflib
from collections.abc import Sequence


def counted(count: int, noun: str) -> str:
    """1 rank, 2 ranks, 1,024 ranks, 3 launches."""
    ending = "" if count == 1 else "es" if noun.endswith(("ch", "s", "x")) else "s"
    return f"{count:,} {noun}{ending}"


def did_you_mean(word: str, known: Sequence[str], cutoff: float = 0.65) -> str:
    """A question with the nearest word; empty without one as near as ``cutoff``, or that begins
    with ``word``."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=cutoff)
    close += [name for name in known if len(word) > 2 and name.startswith(word)]
    return f"Did you mean {close[0]!r}?" if close else ""
