"""A case over commits: its step time with interval, and the first commit where it got worse."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from matplotlib.axes import Axes

from spbench.analysis.history import Series
from spbench.report.plots.figure import PANELS, Sheet
from spbench.report.plots.looks import colour

BAD = "#C00000"
LEAST_ROOM = 0.1
"""The axis spans at least so much of a step, so that no noise looks like a change."""
MOST_LABELS = 8
SHORT = 9
"""Characters of a commit below the axis."""
CAPTION = (
    "Geometric mean of the launches of each commit; bars are 95 % intervals over launches, or the "
    "range of fewer than three; axes do not begin at 0. Red: the first commit from which "
    "on it was worse than before."
)


def history_sheet(series: Sequence[Series]) -> Sheet:
    """A panel for each of the first series that have a time."""
    timed = [each for each in series if any(point.step_ms for point in each.points)]
    timed = [each for each in timed if len(each.points) > 1] or timed
    panels = {
        f"{each.strategy} on {each.ranks} ranks, {each.panel}\n{each.environment}": partial(
            _draw, each
        )
        for each in timed[:PANELS]
    }
    return Sheet(heading="Step time over commits", panels=panels, caption=CAPTION)


def _draw(series: Series, ax: Axes) -> None:
    timed = {i: p.step_ms for i, p in enumerate(series.points) if p.step_ms is not None}
    steps, own = [*timed.values()], colour(series.strategy)
    ends = [
        [max(0.0, step.mean - step.low) for step in steps],
        [max(0.0, step.high - step.mean) for step in steps],
    ]
    means = [step.mean for step in steps]
    ax.errorbar([*timed], means, yerr=ends, color=own, marker="o", markersize=4, capsize=3)
    worse = series.worse.get("time", -1)
    if worse in timed:
        place = worse, timed[worse].mean
        ax.plot(*place, "o", color=BAD, markersize=7, zorder=3)
        look: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "size": 8}
        ax.annotate("worse from here", place, (0, 9), color=BAD, **look)
    shown = range(0, len(series.points), math.ceil(len(series.points) / MOST_LABELS))
    ax.set_xticks(shown, [series.points[i].commit[:SHORT] for i in shown], size=7)
    ax.set_xlim(-0.5, len(series.points) - 0.5)
    low, high = min(step.low for step in steps), max(step.high for step in steps)
    room = max(high - low, LEAST_ROOM * high) / 3
    ax.set_ylim(max(0.0, low - room), high + room)
    ax.set_ylabel("compute share, ms" if series.is_share else "step ms")
    ax.grid(axis="y", color="#DDDDDD", linewidth=0.6)
