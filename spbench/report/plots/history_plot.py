"""A case over commits: its step time with interval, and the first commit where it got worse."""

import math
from collections.abc import Sequence
from functools import partial

from matplotlib.axes import Axes

from spbench.analysis.history import Series
from spbench.report.plots.figure import PANELS, Sheet
from spbench.report.plots.looks import colour

BAD = "#C00000"
ENDS = ((min, "low"), (max, "high"))
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
    timed = [(i, p, p.step_ms) for i, p in enumerate(series.points) if p.step_ms is not None]
    places = [i for i, _, _ in timed]
    means = [step.mean for _, _, step in timed]
    ends = [
        [max(0.0, step.mean - step.low) for _, _, step in timed],
        [max(0.0, step.high - step.mean) for _, _, step in timed],
    ]
    own = colour(series.strategy)
    ax.errorbar(places, means, yerr=ends, color=own, marker="o", markersize=4, capsize=3)
    for i, _, step in timed:
        if i == series.worse.get("time"):
            ax.plot([i], [step.mean], "o", color=BAD, markersize=7, zorder=3)
            ax.annotate(
                "worse from here",
                (i, step.mean),
                (0, 9),
                textcoords="offset points",
                ha="center",
                color=BAD,
                size=8,
            )
    shown = range(0, len(series.points), math.ceil(len(series.points) / MOST_LABELS))
    ax.set_xticks(shown, [series.points[i].commit[:SHORT] for i in shown], size=7)
    ax.set_xlim(-0.5, len(series.points) - 0.5)
    low, high = (end(getattr(step, at) for _, _, step in timed) for end, at in ENDS)
    room = max(high - low, LEAST_ROOM * high) / 3
    ax.set_ylim(max(0.0, low - room), high + room)
    ax.set_ylabel("step ms")
    ax.grid(axis="y", color="#DDDDDD", linewidth=0.6)
