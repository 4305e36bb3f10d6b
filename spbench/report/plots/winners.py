"""The winners' map: which strategy is the fastest at each size and on each number of ranks.

A light cell is not told apart from its second: launches give no verdict, or less than 90 % of a
projection's draws do. A hatched cell is projected.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb

from spbench.analysis.comparable import SHAPE
from spbench.analysis.strategy_line import Line
from spbench.report.plots import looks
from spbench.report.plots import points as of
from spbench.report.plots.figure import Sheet
from spbench.report.plots.points import AXIS, KINDS

GREY = "#EFEFEF"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Which strategy wins at one size on one number of ranks."""

    row: int
    column: int
    strategy: str
    """Blank: none has a time."""
    is_sure: bool
    is_projected: bool
    text: str


@dataclass(frozen=True, kw_only=True)
class WinnersPanel:
    """Cells of one workload; rows are sizes, columns numbers of ranks."""

    cells: Sequence[Cell]
    sizes: Sequence[str]
    ranks: Sequence[int]


def winners_panels(lines: Sequence[Line], frame: pandas.DataFrame) -> dict[str, WinnersPanel]:
    """The maps by their titles."""
    table = of.points(lines, frame, [])
    table["line"] = pandas.Series(list(lines), dtype=object)
    axes = [name for name in map(str, table) if name.startswith(AXIS)]
    key = ["workload", *SHAPE[2:], *KINDS]
    made = {}
    for values, rows in table.groupby(key, sort=False, dropna=False):
        varying = [c for c in [*axes, "batch"] if rows[c].nunique(dropna=False) > 1]
        sized = rows.sort_values(["tokens", *varying], kind="stable")
        sizes = list(dict.fromkeys(_size(row, varying) for row in _rows(sized)))
        ranks = sorted(rows["ranks"].unique())
        title = of.title_of(dict(zip(key, values, strict=True)))
        made[title] = WinnersPanel(
            cells=list(_cells(sized, varying, sizes, ranks)), sizes=sizes, ranks=ranks
        )
    return made


def _rows(table: pandas.DataFrame) -> list[dict[str, Any]]:
    return table.to_dict("records")  # type: ignore[return-value]


def _size(row: Mapping[str, Any], varying: Sequence[str]) -> str:
    words = (of.words_of(c, row[c]) for c in varying)
    return ", ".join(filter(None, words)) or f"{int(row['tokens']):,} tokens"


def _cells(
    rows: pandas.DataFrame, varying: Sequence[str], sizes: Sequence[str], ranks: Sequence[int]
) -> Iterator[Cell]:
    by_place: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for row in _rows(rows):
        place = sizes.index(_size(row, varying)), ranks.index(row["ranks"])
        by_place.setdefault(place, []).append(row)
    for (at, column), group in by_place.items():
        strategy, is_sure, text = _winner([row["line"] for row in group])
        yield Cell(
            row=at,
            column=column,
            strategy=strategy,
            is_sure=is_sure,
            is_projected=group[0]["kind"] == "projected",
            text=text,
        )


def _winner(lines: Sequence[Line]) -> tuple[str, bool, str]:
    """The fastest that fits into memory, whether it is told apart from all others, and by what
    factor the second is slower."""
    timed = sorted((x for x in lines if x.time_ms and x.fits), key=lambda x: x.time_ms or 0.0)
    if not timed:
        unfit = {True: "not measured", False: "too large"}
        statuses = {line.status if line.status != "ok" else unfit[line.fits] for line in lines}
        return "", True, "\n".join(sorted(statuses)[:2])
    best, *others = timed
    slower = [x for x in others if (x.time_ms or 0.0) > (best.time_ms or 0.0) * (1 + 1e-9)]
    if not slower:
        return (best.strategy, True, "alone") if not others else ("", True, "all equal")
    factor = (slower[0].time_ms or 0.0) / (best.time_ms or 1.0)
    return best.strategy, all(line.is_slower for line in slower), f"{factor:.2f}x"


def draw_winners(ax: Axes, panel: WinnersPanel) -> None:
    """A square for each cell, in its winner's colour."""
    width = 72 * ax.bbox.width / ax.figure.dpi / len(panel.ranks)
    for cell in panel.cells:
        own = looks.colour(cell.strategy) if cell.strategy else GREY
        tone = to_rgb(own) if cell.is_sure else looks.lighter(own)
        ax.bar(cell.column, 1, 1, cell.row - 0.5, color=tone, edgecolor="white", lw=1.5)
        pattern = looks.PROJECTED_HATCH if cell.is_projected else looks.hatch(cell.strategy)
        if pattern:
            shade: dict[str, Any] = {
                "color": "none",
                "edgecolor": (1, 1, 1, 0.45),
                "hatch": pattern,
                "lw": 0,
            }
            ax.bar(cell.column, 1, 1, cell.row - 0.5, **shade)
        words = "\n".join(filter(None, [cell.strategy.replace(":", "\n", 1), cell.text]))
        longest = max(map(len, words.split("\n")))
        ax.text(
            *(cell.column, cell.row, words),
            ha="center",
            va="center",
            size=max(4.5, min(7.5, 1.55 * width / longest)),
            color="white" if sum(tone) < 1.6 else "black",
            linespacing=1.1,
        )
    ax.set_xticks(range(len(panel.ranks)), [str(n) for n in panel.ranks])
    ax.set_yticks(range(len(panel.sizes)), panel.sizes)
    ax.set(xlim=(-0.5, len(panel.ranks) - 0.5), ylim=(-0.5, len(panel.sizes) - 0.5))
    ax.tick_params(length=0)
    ax.set(xlabel="ranks")


def winners_sheet(panels: Mapping[str, WinnersPanel], about: str) -> Sheet:
    cells = [cell for panel in panels.values() for cell in panel.cells]
    sizes = [size for panel in panels.values() for size in panel.sizes]
    strategies = dict.fromkeys(cell.strategy for cell in cells if cell.strategy)
    return Sheet(
        heading="The fastest strategy, and how much longer the second takes",
        panels={t: partial(draw_winners, panel=panel) for t, panel in panels.items()},
        caption=f"{about} · light: not told apart from the second · "
        "grey: all are equal, or none has a time",
        strategies=list(strategies),
        has_projected=any(cell.is_projected for cell in cells),
        label_width=0.3 + 0.066 * max(map(len, sizes)),
        rows=2 * max(len(panel.sizes) for panel in panels.values()) + 1,
    )
