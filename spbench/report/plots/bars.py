"""Bars in clusters: one cluster for each number of ranks, one bar in it for each strategy.

One fixed colour for each strategy everywhere, from a palette that the colour-blind can tell
apart (Okabe and Ito); options are a pattern over it. A case that did not finish is a hatched
sliver with its status.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from spbench.analysis.compare_strategies import Line
from spbench.report import units

COLOURS = {
    "dsp": "#0072B2",
    "ulysses": "#E69F00",
    "megatron-sp": "#009E73",
    "rsa": "#CC79A7",
}
MORE_COLOURS = ("#56B4E9", "#D55E00", "#F0E442", "#000000", "#999999")
HATCHES = ("..", "\\\\\\", "oo", "++", "--")


def bars(
    ax: Axes,
    lines: Sequence[Line],
    height: Callable[[Line], float | None],
    whisker: Callable[[Line], tuple[float, float] | None] | None = None,
) -> None:
    places, width = places_of(lines)
    whiskers: list[tuple[float, float, float, float]] = []
    for line, at in zip(lines, places, strict=True):
        value = height(line)
        if line.status != "ok" or value is None:
            mark_failed(ax, at, width, line)
            continue
        ax.bar(at, value, width * 0.92, **fill(line.strategy))
        ends = whisker(line) if whisker else None
        if ends is not None:
            whiskers.append((at, value, *ends))
    if whiskers:
        x, y, *ends_of = np.array(whiskers).T
        ax.errorbar(x, y, yerr=ends_of, fmt="none", ecolor="black", capsize=3, elinewidth=1)
    rank_ticks(ax, lines)


def levels(ax: Axes, at: Sequence[tuple[float, float]], width: float) -> None:
    """A black line over the bar at each place, at its height; all are one artist."""
    if at:
        x, y = np.array(at).T
        ax.hlines(y, x - 0.45 * width, x + 0.45 * width, color="black", lw=1.2)


def places_of(lines: Sequence[Line]) -> tuple[list[float], float]:
    """One cluster of bars for each number of ranks, one bar in it for each strategy."""
    ranks, strategies = _ranks(lines), _strategies(lines)
    width = 0.8 / len(strategies)
    middle = (len(strategies) - 1) / 2
    return [
        ranks.index(line.ranks) + (strategies.index(line.strategy) - middle) * width
        for line in lines
    ], width


def _ranks(lines: Sequence[Line]) -> list[int]:
    return sorted({line.ranks for line in lines})


def _strategies(lines: Sequence[Line]) -> list[str]:
    return list(dict.fromkeys(line.strategy for line in lines))


def rank_ticks(ax: Axes, lines: Sequence[Line]) -> None:
    ranks = _ranks(lines)
    ax.set_xticks(range(len(ranks)), [str(n) for n in ranks])
    ax.set_xlim(-0.6, len(ranks) - 0.4)
    ax.set_xlabel("ranks")
    ax.set_ylim(bottom=0)
    ax.yaxis.set_major_formatter(short)


def short(value: float, _: object = None) -> str:
    """A tick's figure in at most six characters or so."""
    return f"{value:,.5g}" if abs(value) < 1e5 else units.count_of(value)


def mark_failed(ax: Axes, at: float, width: float, line: Line) -> None:
    """A hatched sliver with the status in place of a figure."""
    label = line.status if line.status != "ok" else "not measured"
    transform = ax.get_xaxis_transform()
    ax.bar(
        at, 0.06, width * 0.92, color="white", edgecolor="grey", hatch="xxx", transform=transform
    )
    ax.text(at, 0.08, label, rotation=90, ha="center", va="bottom", fontsize=8, transform=transform)


def colour(strategy: str) -> str:
    """A strategy's own colour, also with options; a stranger's depends on its name alone."""
    name = strategy.split(":", maxsplit=1)[0]
    return COLOURS.get(name, MORE_COLOURS[sum(map(ord, name)) % len(MORE_COLOURS)])


def fill(strategy: str) -> dict[str, Any]:
    """What a bar of this strategy looks like."""
    return {"facecolor": colour(strategy), "hatch": hatch(strategy), "edgecolor": "white", "lw": 0}


def hatch(strategy: str) -> str:
    """A pattern over the strategy's colour, which distinguishes its options."""
    options = strategy.partition(":")[2]
    return HATCHES[sum(map(ord, options)) % len(HATCHES)] if options else ""
