"""Bars in clusters: a cluster for each number of ranks, a stack of bars in it for each strategy.

Each strategy has one fixed colour everywhere, from a palette that the colour-blind can tell apart
(Okabe and Ito); its options are a pattern over the colour. A case that did not finish is a hatched
sliver with its status.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from spbench.analysis.compare_strategies import Line
from spbench.report import units

COLOURS = {"dsp": "#0072B2", "ulysses": "#E69F00", "megatron-sp": "#009E73", "rsa": "#CC79A7"}
MORE_COLOURS = ("#56B4E9", "#D55E00", "#F0E442", "#000000", "#999999")
HATCHES = ("..", "\\\\\\", "oo", "++", "--")
FILL = 0.92
"""Share of its place that a bar is wide."""


@dataclass(frozen=True, kw_only=True)
class Stack:
    """The bars of one case, each on top of the one before."""

    bars: Sequence[tuple[float, dict[str, Any]]] = ()
    """Height and look of each bar, from the bottom."""
    levels: Sequence[float] = ()
    """Heights of black lines across the stack."""
    whisker: tuple[float, float] | None = None
    """Lengths of the whisker below and above the top."""


def draw_stacks(
    ax: Axes, lines: Sequence[Line], stack_of: Callable[[Line], Stack | None], unit: str
) -> None:
    """A stack for each line, or its status where ``stack_of`` returns None.

    Bars of a panel are one call each of matplotlib, which takes a fraction of a call for each bar.
    """
    places, width = places_of(lines)
    stacks = [(at, stack_of(line)) for line, at in zip(lines, places, strict=True)]
    _draw_bars(ax, stacks, width)
    failed = [(at, line) for (at, stack), line in zip(stacks, lines, strict=True) if stack is None]
    _mark_failed(ax, failed, width)
    whiskers = [
        (at, sum(height for height, _ in stack.bars), *stack.whisker)
        for at, stack in stacks
        if stack and stack.whisker
    ]
    if whiskers:
        x, y, *ends = np.array(whiskers).T
        ax.errorbar(x, y, yerr=ends, fmt="none", ecolor="black", capsize=3, elinewidth=1)
    levels = [(at, height) for at, stack in stacks if stack for height in stack.levels]
    if levels:
        x, y = np.array(levels).T
        ax.hlines(y, x - 0.45 * width, x + 0.45 * width, color="black", lw=1.2)
    _label_ranks(ax, lines)
    ax.set_ylabel(unit)


def _draw_bars(ax: Axes, stacks: Sequence[tuple[float, Stack | None]], width: float) -> None:
    bars: list[tuple[float, float, float]] = []
    looks: dict[str, Any] = {}
    for at, stack in stacks:
        bottom = 0.0
        for height, look in stack.bars if stack else ():
            bars.append((at, height, bottom))
            bottom += height
            for name, value in look.items():
                looks.setdefault(name, []).append(value)
    if bars:
        x, heights, bottoms = zip(*bars, strict=True)
        ax.bar(x, heights, width * FILL, bottoms, **looks)


def _mark_failed(ax: Axes, failed: Sequence[tuple[float, Line]], width: float) -> None:
    """A hatched sliver with the status in place of a figure."""
    across = ax.get_xaxis_transform()
    if failed:
        look: dict[str, Any] = {"color": "white", "edgecolor": "grey", "hatch": "xxx"}
        ax.bar([at for at, _ in failed], 0.06, width * FILL, transform=across, **look)
    for at, line in failed:
        label = line.status if line.status != "ok" else "not measured"
        ax.text(
            at, 0.08, label, rotation=90, ha="center", va="bottom", fontsize=8, transform=across
        )


def places_of(lines: Sequence[Line]) -> tuple[list[float], float]:
    """The middle of each line's stack, and the width of a place."""
    ranks, strategies = _ranks(lines), list(dict.fromkeys(line.strategy for line in lines))
    width = 0.8 / len(strategies)
    middle = (len(strategies) - 1) / 2
    return [
        ranks.index(line.ranks) + (strategies.index(line.strategy) - middle) * width
        for line in lines
    ], width


def _ranks(lines: Sequence[Line]) -> list[int]:
    return sorted({line.ranks for line in lines})


def _label_ranks(ax: Axes, lines: Sequence[Line]) -> None:
    ranks = _ranks(lines)
    ax.set_xticks(range(len(ranks)), [str(n) for n in ranks])
    ax.set_xlim(-0.6, len(ranks) - 0.4)
    ax.set_xlabel("ranks")
    ax.set_ylim(bottom=0)
    ax.yaxis.set_major_formatter(_short)


def _short(value: float, _: object = None) -> str:
    """A tick's figure in at most six characters or so."""
    return f"{value:,.5g}" if abs(value) < 1e5 else units.count_of(value)


def colour(strategy: str) -> str:
    """A strategy's own colour, also with options; a stranger's depends on its name alone."""
    name = strategy.split(":", maxsplit=1)[0]
    return COLOURS.get(name, MORE_COLOURS[sum(map(ord, name)) % len(MORE_COLOURS)])


def fill(strategy: str) -> dict[str, Any]:
    """The look of a strategy's bar."""
    return {
        "color": colour(strategy),
        "hatch": hatch(strategy),
        "edgecolor": "white",
        "linewidth": 0,
    }


def hatch(strategy: str) -> str:
    """A pattern over the strategy's colour, which distinguishes its options."""
    options = strategy.partition(":")[2]
    return HATCHES[sum(map(ord, options)) % len(HATCHES)] if options else ""
