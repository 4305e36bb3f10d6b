"""How much longer each strategy takes than the reference, with intervals: a forest plot.

A row is a strategy on a number of ranks. An interval wholly within the band is the same, wholly
outside it faster or slower; a hollow dot marks no significant difference.
"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, NullLocator

from spbench.analysis.compare import MARGIN, limits_of
from spbench.analysis.compare_strategies import Line
from spbench.report.plots.bars import colour


def compared(line: Line) -> bool:
    """Whether a line has a ratio to another strategy."""
    times = line.to_reference
    return times is not None and times.ratio is not None and line.strategy != line.reference


def labels(lines: Sequence[Line]) -> list[str]:
    return [f"{line.strategy}, {line.ranks}" for line in lines if compared(line)]


def ratios(ax: Axes, lines: Sequence[Line], margin: float = MARGIN) -> None:
    """Rows from the top, in the order of the lines; the axis is logarithmic."""
    shown = [line for line in lines if compared(line)]
    ax.axvspan(*limits_of(margin), color="#EEEEEE", lw=0, zorder=0)
    ax.axvline(1.0, color="#888888", lw=0.8, zorder=1)
    rows = [(-row, line.to_reference, colour(line.strategy)) for row, line in enumerate(shown)]
    spans = [(y, x.low, x.high, hue) for y, x, hue in rows if x and x.low and x.high]
    if spans:
        y, low, high, hues = zip(*spans, strict=True)
        ax.hlines(y, low, high, colors=hues, lw=1.6, zorder=2)
    dots = [
        (x.ratio, y, hue, "white" if x.verdict == "inconclusive" else hue)
        for y, x, hue in rows
        if x and x.ratio
    ]
    if dots:
        ratio, y, hues, fillings = zip(*dots, strict=True)
        ax.scatter(ratio, y, s=30, c=fillings, edgecolors=hues, lw=1.2, zorder=3)
    ax.set_xscale("log")
    ax.xaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10]))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter("{x:g}x")
    ax.set_yticks([-float(row) for row in range(len(shown))], labels(shown))
    ax.set_ylim(0.6 - len(shown), 0.6)
    what = "step" if all(line.kind == "measured" for line in shown) else "compute"
    ax.set_xlabel(f"{what} time against {shown[0].reference}'s" if shown else "")
