"""Narrow tables: columns are left out before words are cut."""

from __future__ import annotations

from helpers.golden import Golden
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from spbench.report.fit_width import Grid, fewer, fitting, left_out, line_width

CELLS = st.text("ab 步", min_size=0, max_size=12)
GRID = Grid(
    columns=["name", "what it is", "step ms"],
    rows=[["dsp", "a plan of switches", "12,345"], ["megatron-sp", "cuts", "-"]],
    words=(0, 1),
    wraps=(1,),
)


def test_the_width_of_a_line() -> None:
    """A line has three blanks between columns and a blank at each end."""
    assert GRID.whole == [11, 18, 7]
    assert line_width(GRID.whole) == len(" megatron-sp   a plan of switches   step ms ")


def test_heads_break_first_then_cells_of_words() -> None:
    """Heads and sentences break between words, figures and names never; no width is smaller."""
    assert GRID.broken(44) == [11, 18, 7]
    assert GRID.broken(43) == [11, 18, 6]
    assert GRID.broken(42) == [11, 17, 6]
    assert GRID.broken(33) == [11, 8, 6]
    assert GRID.broken(32) is None
    assert GRID.widths(42) is None


def test_what_is_left_when_columns_go(golden: Golden) -> None:
    """A grid without some columns still knows its words, and the columns it lacks."""
    less = GRID.without("name", "step ms")
    assert (less.columns, less.words, less.wraps) == (["what it is"], [0], [0])
    assert less.rows == [["a plan of switches"], ["cuts"]]
    assert less.lacks == ["name", "step ms"]
    grids = fewer(GRID, ["step ms", "what it is"])
    assert [grid.lacks for grid in grids] == [[], ["step ms"], ["what it is", "step ms"]]
    assert [fitting(grids, room).lacks for room in (33, 32, 13, 5)] == [
        *(grid.lacks for grid in grids),
        grids[-1].lacks,
    ]
    golden(left_out(["step ms", "tokens\na step"]))


@given(st.data(), st.integers(1, 4), st.integers(1, 60))
def test_no_word_is_cut(data: st.DataObject, count: int, room: int) -> None:
    """Where widths are given, lines fit the room and every word fits its column."""
    row = st.lists(CELLS, min_size=count, max_size=count)
    rows = data.draw(st.lists(row, min_size=1, max_size=3))
    grid = Grid(columns=data.draw(row), rows=rows, wraps=(0,))
    widths = grid.broken(room)
    if widths is None:
        return
    assert line_width(widths) <= room
    for i, width in enumerate(widths):
        whole = rows if i else []
        assert all(cell_len(one[i]) <= width for one in whole)
        words = [word for one in (grid.columns, *rows) for word in one[i].split()]
        assert all(cell_len(word) <= width for word in words)
