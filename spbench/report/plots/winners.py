"""The winners' map: which strategy is the fastest at each size and on each number of ranks.

Who can be ranked, and who is fastest, says ``analysis.ranking``. A light cell is not told apart
from its second: launches give no verdict, or less than 90 % of a projection's draws do. A cell of
which a time is of noisy launches has no winner. A hatched cell is projected.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import pandas
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb

from spbench.analysis.comparable import SHAPE
from spbench.analysis.compare_strategies import Line, ranking_of
from spbench.report.plots import looks
from spbench.report.plots import points as of
from spbench.report.plots.figure import Sheet
from spbench.report.plots.points import AXIS, KINDS

GREY = "#EFEFEF"
UNRANKED_HATCH = "xxx"


class Winner(NamedTuple):
    """Which strategy wins at one size on one number of ranks; blank: none does."""

    strategy: str
    is_sure: bool
    """Whether it is told apart from all others."""
    text: str
    is_ranked: bool = True
    """False where noise forbids to say who wins."""


@dataclass(frozen=True, kw_only=True)
class WinnersPanel:
    """Winners of one workload, by row and column; rows are sizes, columns numbers of ranks."""

    winners: Mapping[tuple[int, int], Winner]
    sizes: Sequence[str]
    ranks: Sequence[int]
    is_projected: bool


def winners_panels(lines: Sequence[Line], frame: pandas.DataFrame) -> dict[str, WinnersPanel]:
    """The maps by their titles."""
    table = of.points(lines, frame, [])
    table["line"] = pandas.Series(list(lines), dtype=object)
    table = table[table["kind"] != "one_gpu_share"]
    axes = [name for name in map(str, table) if name.startswith(AXIS)]
    key = ["workload", *SHAPE[2:], *KINDS]
    made = {}
    for values, rows in table.groupby(key, sort=False, dropna=False):
        varying = [c for c in [*axes, "batch"] if rows[c].nunique(dropna=False) > 1]
        sized = rows.sort_values(["tokens", *varying], kind="stable")
        sized["size"] = [_size(row, varying) for row in sized.to_dict("records")]  # type: ignore[arg-type]
        sizes, ranks = sized["size"].unique().tolist(), sorted(rows["ranks"].unique())
        made[of.title_of(dict(zip(key, values, strict=True)))] = WinnersPanel(
            winners={
                (sizes.index(size), ranks.index(count)): _winner(group["line"].tolist())
                for (size, count), group in sized.groupby(["size", "ranks"], sort=False)
            },
            sizes=sizes,
            ranks=ranks,
            is_projected=rows["kind"].iloc[0] == "projected",
        )
    return made


def _size(row: Mapping[str, Any], varying: Sequence[str]) -> str:
    words = (of.words_of(c, row[c]) for c in varying)
    return ", ".join(filter(None, words)) or f"{int(row['tokens']):,} tokens"


def _winner(lines: Sequence[Line]) -> Winner:
    """The fastest, whether it is told apart from all others, and by what factor the second is
    slower; no strategy where noise or memory leaves none to rank."""
    ranked = ranking_of(lines)
    if ranked.noisy:
        names = [line.strategy for line in ranked.noisy]
        more = [f"and {len(names) - 1} more"] if len(names) > 2 else names[1:]
        words = "\n".join(["not ranked,", "noisy:", names[0], *more])
        return Winner("", False, words, is_ranked=False)
    if ranked.lowest is None:
        unfit = {True: "not measured", False: "too large"}
        statuses = {line.status if line.status != "ok" else unfit[line.fits] for line in lines}
        return Winner("", True, "\n".join(sorted(statuses)[:2]))
    best, best_ms = ranked.lowest, ranked.lowest.time_ms or 0.0
    slower = [x for x in ranked.others if (x.time_ms or 0.0) > best_ms * (1 + 1e-9)]
    if not slower:
        is_alone = not ranked.others
        return Winner(best.strategy, True, "alone") if is_alone else Winner("", True, "all equal")
    factor = (slower[0].time_ms or 0.0) / best_ms
    return Winner(best.strategy, ranked.fastest is not None, f"{factor:.2f}x")


def draw_winners(ax: Axes, panel: WinnersPanel) -> None:
    """A square for each cell, in its winner's colour."""
    width = 72 * ax.bbox.width / ax.figure.dpi / len(panel.ranks)
    for (row, column), cell in panel.winners.items():
        own = looks.colour(cell.strategy) if cell.strategy else GREY
        tone = to_rgb(own) if cell.is_sure else looks.lighter(own)
        ax.bar(column, 1, 1, row - 0.5, color=tone, edgecolor="white", lw=1.5)
        pattern = looks.PROJECTED_HATCH if panel.is_projected else looks.hatch(cell.strategy)
        light: tuple[float, ...] = (1, 1, 1, 0.45)
        if not cell.is_ranked:
            pattern, light = UNRANKED_HATCH, to_rgb("#D0D0D0")
        if pattern:
            ax.bar(column, 1, 1, row - 0.5, color="none", edgecolor=light, hatch=pattern, lw=0)
        words = "\n".join(filter(None, [cell.strategy.replace(":", "\n", 1), cell.text]))
        longest = max(map(len, words.split("\n")))
        ax.text(
            *(column, row, words),
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
    winners = [each for panel in panels.values() for each in panel.winners.values()]
    sizes = [size for panel in panels.values() for size in panel.sizes]
    meanings = ["light: not told apart from the second", "grey: all are equal, or none has a time"]
    if any(not each.is_ranked for each in winners):
        meanings.append("crossed: not ranked, since launches of a strategy were noisy")
    return Sheet(
        heading="The fastest strategy, and how much longer the second takes",
        panels={t: partial(draw_winners, panel=panel) for t, panel in panels.items()},
        caption=" · ".join([about, *meanings]),
        strategies=list(dict.fromkeys(each.strategy for each in winners if each.strategy)),
        has_projected=any(panel.is_projected for panel in panels.values()),
        label_width=0.3 + 0.066 * max(map(len, sizes)),
        rows=2 * max(len(panel.sizes) for panel in panels.values()) + 1,
    )
