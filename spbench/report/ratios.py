"""How much longer each strategy takes than the reference, with intervals: a forest plot.

A row for each strategy and number of ranks, the reference's left out. What lies wholly within
the band is the same, wholly outside it faster or slower; a hollow dot is not told apart.
"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, NullLocator

from spbench.judge.comparison import MARGIN, limits_of
from spbench.judge.side_by_side import Line
from spbench.report.bars import colour


def compared(line: Line) -> bool:
    """Whether a line has a ratio to another strategy."""
    found = line.to_reference
    return found is not None and found.ratio is not None and line.strategy != line.reference


def labels(lines: Sequence[Line]) -> list[str]:
    return [f"{line.strategy}, {line.ranks}" for line in lines if compared(line)]


def ratios(ax: Axes, lines: Sequence[Line], margin: float = MARGIN) -> None:
    """Rows from the top, in the order of the lines; the axis is logarithmic."""
    shown = [line for line in lines if compared(line)]
    ax.axvspan(*limits_of(margin), color="#EEEEEE", lw=0, zorder=0)
    ax.axvline(1.0, color="#888888", lw=0.8, zorder=1)
    for row, line in enumerate(shown):
        found = line.to_reference
        if found is None or found.ratio is None:
            continue
        hue = colour(line.strategy)
        if found.low is not None and found.high is not None:
            ax.plot([found.low, found.high], [-row, -row], color=hue, lw=1.6, zorder=2)
        is_told = found.verdict != "inconclusive"
        ax.plot(
            [found.ratio], [-row], "o", ms=5.5, color=hue, mfc=hue if is_told else "white", zorder=3
        )
    ax.set_xscale("log")
    ax.xaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10]))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter("{x:g}x")
    ax.set_yticks([-float(row) for row in range(len(shown))], labels(shown))
    ax.set_ylim(0.6 - len(shown), 0.6)
    ax.set_xlabel(f"step time against {shown[0].reference}'s" if shown else "")
