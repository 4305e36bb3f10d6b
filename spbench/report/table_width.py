"""Whether a table fits a terminal: columns are left out before a word or a figure is cut.

Heads may break between words. Where that is not enough, so may cells of columns that hold several
words; a row is then more than one line.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import final

from rich.cells import cell_len

BETWEEN = 3
"""Blanks from one column to the next; one more stands at each end of a line."""


@final
@dataclass(frozen=True, kw_only=True)
class Grid:
    """The texts of a table."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: Collection[int] = (0,)
    """Columns of words; the others hold figures, which stand to the right."""
    wraps: Collection[int] = ()
    """Columns whose cells may break between words."""
    lacks: Sequence[str] = ()
    """Heads of the columns that were left out."""

    def without(self, *names: str) -> Grid:
        """Lacking the columns of these heads."""
        kept = [i for i, name in enumerate(self.columns) if name not in names]
        return Grid(
            columns=[self.columns[i] for i in kept],
            rows=[[row[i] for i in kept] for row in self.rows],
            words=[at for at, i in enumerate(kept) if i in self.words],
            wraps=[at for at, i in enumerate(kept) if i in self.wraps],
            lacks=[*self.lacks, *(name for name in self.columns if name in names)],
        )

    @property
    def whole(self) -> list[int]:
        """Characters of each column where nothing is broken."""
        return [max(map(_widest, cells)) for cells in self._by_column()]

    def widths(self, room: int, wraps: Collection[int] = ()) -> list[int] | None:
        """Characters of each column in lines of ``room``, with heads and ``wraps`` broken.

        None where even so a word would be cut.
        """
        least = [
            max(_longest_word(head), *map(_longest_word if i in wraps else _widest, cells), 0)
            for i, (head, *cells) in enumerate(self._by_column())
        ]
        spare = room - taken(least)
        if spare < 0:
            return None
        found = []
        for narrow, wide in zip(least, self.whole, strict=True):
            more = min(spare, wide - narrow)
            found.append(narrow + more)
            spare -= more
        return found

    def broken(self, room: int) -> list[int] | None:
        """The same with heads broken alone where that is enough, else cells too."""
        return self.widths(room) or self.widths(room, self.wraps)

    def _by_column(self) -> list[tuple[str, ...]]:
        return list(zip(self.columns, *self.rows, strict=True))


def taken(widths: Sequence[int]) -> int:
    """Characters of a line of columns that are so wide."""
    return sum(widths) + BETWEEN * len(widths) - 1


def fitting(grids: Sequence[Grid], room: int) -> Grid:
    """The first, the fullest being first, that fits into lines of ``room`` characters.

    Else the last, of which words must be cut.
    """
    return next((grid for grid in grids if grid.broken(room) is not None), grids[-1])


def fewer(full: Grid, spare: Sequence[str]) -> list[Grid]:
    """``full``, and what is left of it when columns go, one after another."""
    return [full.without(*spare[:count]) for count in range(len(spare) + 1)]


def left_out(names: Sequence[str]) -> str:
    """What is said below a table of which columns were left out."""
    listed = ", ".join(" ".join(name.split()) for name in names)
    return f"no room for {listed}: --json has all, and so has a wider terminal"


def _widest(text: str) -> int:
    return max(map(cell_len, text.split("\n")))


def _longest_word(text: str) -> int:
    return max(map(cell_len, text.split()), default=0)
