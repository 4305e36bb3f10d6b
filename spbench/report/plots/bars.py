"""Bars in clusters: a cluster for each number of ranks, a stack of bars in it for each strategy.

A case that did not finish is a hatched sliver with its status; a time of noisy launches says so
above its bar.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from spbench.analysis.compare_strategies import Line
from spbench.report import units

FILL = 0.92
"""Share of its place that a bar is wide."""
NOISY_HEIGHT = 0.5
"""Inches of the label of noisy launches, which stands upright above its bar."""
UPRIGHT: Mapping[str, Any] = {"rotation": 90, "ha": "center", "va": "bottom"}


@dataclass(frozen=True, kw_only=True)
class Stack:
    """The bars of one case, each on top of the one before."""

    bars: Sequence[tuple[float, dict[str, Any]]] = ()
    """Height and look of each bar, from the bottom."""
    levels: Sequence[float] = ()
    """Heights of black lines across the stack."""
    whisker: tuple[float, float] | None = None
    """Lengths of the whisker below and above the top."""
    is_noisy: bool = False
    """Noisy launches are marked above the bar."""

    @property
    def placed(self) -> list[tuple[float, float, dict[str, Any]]]:
        """The bottom, height and look of each bar."""
        bottoms = accumulate((height for height, _ in self.bars), initial=0.0)
        return [(bottom, *bar) for bottom, bar in zip(bottoms, self.bars, strict=False)]

    @property
    def top(self) -> float:
        return sum(height for height, _ in self.bars)


def draw_stacks(
    ax: Axes, lines: Sequence[Line], stack_of: Callable[[Line], Stack | None], unit: str
) -> None:
    """A stack for each line; its status where it is not ok or ``stack_of`` returns None.

    Bars of a panel are one call each of matplotlib, which takes a fraction of a call for each bar.
    """
    ranks = sorted({line.ranks for line in lines})
    strategies = list(dict.fromkeys(line.strategy for line in lines))
    width, middle = 0.8 / len(strategies), (len(strategies) - 1) / 2
    placed = [
        (
            ranks.index(line.ranks) + (strategies.index(line.strategy) - middle) * width,
            line,
            stack_of(line) if line.status == "ok" else None,
        )
        for line in lines
    ]
    ax.set_xlim(-0.6, len(ranks) - 0.4)
    _draw_measured(ax, [(at, stack) for at, _, stack in placed if stack], width)
    _mark_failed(ax, [(at, line) for at, line, stack in placed if stack is None], width)
    ax.set_xticks(range(len(ranks)), [str(n) for n in ranks])
    ax.set_ylim(bottom=0)
    if not any(stack for *_, stack in placed):
        ax.set_yticks([])
    ax.yaxis.set_major_formatter(short)
    ax.set(xlabel="ranks", ylabel=unit)


def _draw_measured(ax: Axes, stacks: Sequence[tuple[float, Stack]], width: float) -> None:
    """Bars, whiskers and levels of the stacks at these places."""
    bars = [(at, *bar) for at, stack in stacks for bar in stack.placed]
    ax.use_sticky_edges = False  # a bar of no height on others is no edge
    if bars:
        x, bottoms, heights, looks = zip(*bars, strict=True)
        each: dict[str, Any] = {name: [look[name] for look in looks] for name in looks[0]}
        ax.bar(x, heights, width * FILL, bottoms, **each)
    whiskers = [(at, stack.top, *stack.whisker) for at, stack in stacks if stack.whisker]
    if whiskers:
        x, y, *ends = np.array(whiskers).T
        ax.errorbar(x, y, yerr=ends, fmt="none", ecolor="black", capsize=3, elinewidth=1)
    levels = [(at, height) for at, stack in stacks for height in stack.levels]
    if levels:
        x, y = np.array(levels).T
        ax.hlines(y, x - 0.45 * width, x + 0.45 * width, color="black", lw=1.2)
    mark = NOISY_HEIGHT * ax.figure.dpi / ax.bbox.height
    for at, stack in stacks:
        if stack.is_noisy:
            top = max(stack.top + (stack.whisker or (0.0, 0.0))[1], *stack.levels, 0.0)
            ax.text(at, top, " noisy", fontsize=7, **UPRIGHT)
            ax.set_ylim(top=max(ax.get_ylim()[1], top / (1 - mark)))


def _mark_failed(ax: Axes, failed: Sequence[tuple[float, Line]], width: float) -> None:
    """A hatched sliver with the status in place of a figure."""
    across = ax.get_xaxis_transform()
    if failed:
        look: dict[str, Any] = {"color": "white", "edgecolor": "grey", "hatch": "xxx"}
        ax.bar([at for at, _ in failed], 0.06, width * FILL, transform=across, **look)
    slot = 72 * width * ax.bbox.width / ax.figure.dpi / np.ptp(ax.get_xlim())
    for at, line in failed:
        label = line.status if line.status != "ok" else "not measured"
        ax.text(at, 0.08, label, fontsize=min(8, max(5, slot)), transform=across, **UPRIGHT)


def short(value: float, _: object = None) -> str:
    """A tick's figure in at most six characters or so."""
    return f"{value:,.5g}" if abs(value) < 1e5 else units.count_of(value)
