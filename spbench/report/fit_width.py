"""Tables and sentences are fitted to the width of a line.

Columns of a table are left out before a word or a figure is cut. Heads may break between words;
where that is not enough, so may the cells of columns that hold several words, and a row is then
more than one line.
"""

import textwrap
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import final

from rich.cells import cell_len
from rich.text import Text

BETWEEN = 3
"""Blanks from one column to the next; another blank stands at each end of a line."""
Placed = tuple[int, str]
"""The column of a line where a text begins, and the text."""


@final
@dataclass(frozen=True, kw_only=True)
class Grid:
    """The texts of a table."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: Collection[int] = (0,)
    """Columns of words, which stand to the left; the others hold figures, to the right."""
    wraps: Collection[int] = ()
    """Columns whose cells may break between words."""
    lacks: Sequence[str] = ()
    """Heads of the columns that were left out."""

    def without(self, *names: str) -> "Grid":
        """The grid without the columns of these heads."""
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
        return [_widest_line(*cells) for cells in self._by_column()]

    def widths(self, room: int, wraps: Collection[int] = ()) -> list[int] | None:
        """Characters of each column in lines of ``room``, with heads and ``wraps`` broken; None
        where even so a word would be cut."""
        least = [
            max(_longest_word(head), (_longest_word if i in wraps else _widest_line)(*cells))
            for i, (head, *cells) in enumerate(self._by_column())
        ]
        spare = room - line_width(least)
        if spare < 0:
            return None
        widths = []
        for narrow, wide in zip(least, self.whole, strict=True):
            more = min(spare, wide - narrow)
            widths.append(narrow + more)
            spare -= more
        return widths

    def broken(self, room: int) -> list[int] | None:
        """Widths with heads broken, and with cells, too, where heads are not enough."""
        return self.widths(room) or self.widths(room, self.wraps)

    def _by_column(self) -> list[tuple[str, ...]]:
        return list(zip(self.columns, *self.rows, strict=True))


def width_of(text: str) -> int:
    """Characters that a text takes in a terminal."""
    return len(text) if text.isascii() else cell_len(text)


def line_width(widths: Sequence[int]) -> int:
    """Characters of a line of columns of these widths."""
    return sum(widths) + BETWEEN * len(widths) - 1


def fitting(grids: Sequence[Grid], room: int) -> Grid:
    """The first grid, the fullest being first, that fits into lines of ``room`` characters; or the
    last, whose words must be cut."""
    return next((grid for grid in grids if grid.broken(room) is not None), grids[-1])


def fewer(full: Grid, spare: Sequence[str]) -> list[Grid]:
    """``full``, then grids that lack ever more of the ``spare`` columns."""
    return [full.without(*spare[:count]) for count in range(len(spare) + 1)]


def by_panel(grid: Grid, panels: Sequence[str]) -> dict[str, Grid]:
    """The rows of each panel, in order; ``panels``: the panel of each row."""
    rows: dict[str, list[Sequence[str]]] = {}
    for panel, row in zip(panels, grid.rows, strict=True):
        rows.setdefault(panel, []).append(row)
    return {panel: replace(grid, rows=of_panel) for panel, of_panel in rows.items()}


def left_out(names: Sequence[str]) -> str:
    """The sentence below a table that names its missing columns."""
    listed = ", ".join(" ".join(name.split()) for name in names)
    return f"no room for {listed}: --json has all, and so has a wider terminal"


def _widest_line(*texts: str) -> int:
    return max(map(width_of, "\n".join(texts).split("\n")))


def _longest_word(*texts: str) -> int:
    return max(map(width_of, " ".join(texts).split()), default=0)


def packed(texts: Iterable[Placed]) -> Text:
    """A line with each text at its column."""
    line = ""
    for at, text in texts:
        line = line.ljust(at) + text
    return Text(line.rstrip())


def has_room(texts: Sequence[Placed], gap: int = 1) -> bool:
    """Whether each text ends ``gap`` spaces before the next begins."""
    return all(at + len(text) + gap <= after for (at, text), (after, _) in pairwise(texts))


def folded(
    text: str, width: int, indent: int = 2, *, label: str = "", style: str = "dim"
) -> list[Text]:
    """A sentence folded between words; ``label`` stands within the indent of the first line."""
    lines = textwrap.wrap(
        text,
        width,
        initial_indent=label.ljust(indent),
        subsequent_indent=" " * indent,
        break_on_hyphens=False,
    )
    return [Text(line, style) for line in lines]
