"""How much longer each strategy takes than the reference, with intervals: a forest plot.

A row for each strategy and number of ranks, the reference's left out. What lies wholly within
the band is the same, wholly outside it faster or slower; a hollow dot is no significant difference.
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
    found = line.to_reference
    return found is not None and found.ratio is not None and line.strategy != line.reference


def labels(lines: Sequence[Line]) -> list[str]:
    return [f"{line.strategy}, {line.ranks}" for line in lines if compared(line)]


def ratios(ax: Axes, lines: Sequence[Line], margin: float = MARGIN) -> None:
    """Rows from the top, in the order of the lines; the axis is logarithmic."""
    shown = [line for line in lines if compared(line)]
    ax.axvspan(*limits_of(margin), color="#EEEEEE", lw=0, zorder=0)
    ax.axvline(1.0, color="#888888", lw=0.8, zorder=1)
    found = [(-row, one.to_reference, colour(one.strategy)) for row, one in enumerate(shown)]
    spans = [(y, one.low, one.high, hue) for y, one, hue in found if one and one.low and one.high]
    if spans:
        y, low, high, hues = zip(*spans, strict=True)
        ax.hlines(y, low, high, colors=hues, lw=1.6, zorder=2)
    dots = [(one.ratio, y, hue, one.verdict) for y, one, hue in found if one and one.ratio]
    if dots:
        ratio, y, hues, verdicts = zip(*dots, strict=True)
        told = [
            hue if verdict != "inconclusive" else "white"
            for hue, verdict in zip(hues, verdicts, strict=True)
        ]
        ax.scatter(ratio, y, s=30, c=told, edgecolors=hues, lw=1.2, zorder=3)
    ax.set_xscale("log")
    ax.xaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10]))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter("{x:g}x")
    ax.set_yticks([-float(row) for row in range(len(shown))], labels(shown))
    ax.set_ylim(0.6 - len(shown), 0.6)
    what = "step" if all(line.kind == "measured" for line in shown) else "compute"
    ax.set_xlabel(f"{what} time against {shown[0].reference}'s" if shown else "")
