"""A curve and a panel of curves, as plain data, and what stands beside the lines.

Names stand at the right edge, each at the height of its curve's last point or as near as there is
room; crosses at the bottom.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes

from spbench.report.plots import looks
from spbench.report.plots.looks import LineLook


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Points of a strategy, in order of x."""

    label: str
    look: LineLook
    is_projected: bool
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    """Lengths of the error bars below the points; empty where points have none."""
    high: Sequence[float] = ()
    noisy: Sequence[bool]
    texts: Sequence[str] = ()
    """What stands at the points."""
    failed: Sequence[tuple[float, str]] = ()
    """Places on the x axis without a point, and why."""


@dataclass(frozen=True, kw_only=True)
class CurvePanel:
    """What a panel shows besides its curves."""

    curves: Sequence[Curve]
    x: str
    """Label of the x axis."""
    y: str
    has_ticks_at_points: bool
    """The x axis is labelled at each x, as of ranks."""
    ideal: float | None = None
    """Power of x that an ideal strategy follows."""
    ideal_name: str = "ideal"
    missing: str = ""
    """What stands in place of curves where no case has a point, and why none has."""

    @property
    def is_projected(self) -> bool:
        return any(curve.is_projected for curve in self.curves)


ROW = 8.5 / 72
"""Inches of a row of crosses."""
GAP = 10.8 / 72
"""Inches from a name to the next."""
MOST_FAILED = 6
"""Crosses above each other; more are a number."""


def rows_of_failed(curves: Sequence[Curve], every_x: Sequence[float]) -> int:
    """Crosses above each other, where there are most."""
    counts = (sum(at == x for curve in curves for at, _ in curve.failed) for x in every_x)
    return min(MOST_FAILED, max(counts, default=0))


def mark_failed(ax: Axes, curves: Sequence[Curve], every_x: Sequence[float], row: float) -> None:
    """A cross in the strategy's colour for each case without a figure, above each other."""
    across = ax.get_xaxis_transform()
    for x in every_x:
        failed = [(c, why) for c in curves for at, why in c.failed if at == x]
        shown = failed if len(failed) <= MOST_FAILED else failed[: MOST_FAILED - 1]
        for i, (curve, why) in enumerate(shown):
            height = (i + 0.6) * row
            own = curve.look.colour
            ax.plot([x], [height], "x", color=own, markersize=4.5, mew=1.4, transform=across)
            _aside(ax, x, height, why, is_left=x == every_x[-1] != every_x[0])
        if len(failed) > len(shown):
            text = f"and {len(failed) - len(shown)} more"
            _aside(ax, x, (len(shown) + 0.6) * row, text, is_left=x == every_x[-1] != every_x[0])


def _aside(ax: Axes, x: float, height: float, text: str, *, is_left: bool) -> None:
    """What stands beside a cross; left of the last, whose right is the names' place."""
    away, side = (-4.5, "right") if is_left else (4.5, "left")
    across = ax.get_xaxis_transform()
    beside(ax, (x, height), text, (away, 0), size=6, ha=side, va="center", xycoords=across)


def beside(
    ax: Axes, place: tuple[float, float], text: str, away: tuple[float, float], **look: Any
) -> None:
    """A small grey text, so many points ``away`` from its place."""
    ax.annotate(text, place, away, textcoords="offset points", color="#555555", **look)


def name_at_end(curve: Curve) -> str:
    return curve.label if curve.x else f"{curve.label} (none)"


def label_ends(ax: Axes, curves: Sequence[Curve], row: float) -> None:
    """Each name at the right edge, at the height of its last point or as near as there is room."""
    to_axes = ax.transAxes.inverted()
    ends = []
    for curve in curves:
        last = (curve.x[-1], curve.y[-1]) if curve.x else None
        height = to_axes.transform(ax.transData.transform(last))[1] if last else 0.0
        ends.append((float(height), last, curve))
    ends.sort(key=lambda end: end[0])
    for place, (_, last, curve) in zip(_apart([end[0] for end in ends], row), ends, strict=True):
        own = curve.look.colour
        style = {"arrowstyle": "-", "color": looks.lighter(own, 0.5), "lw": 0.7, "shrinkB": 2}
        style["relpos"] = (0.0, 0.5)  # to where the name begins
        ax.annotate(
            name_at_end(curve),
            last or (1.0, place),
            (1.03, place),
            xycoords="data" if last else "axes fraction",
            textcoords="axes fraction",
            arrowprops=style if last else None,
            color=looks.darker(own),
            size=7.5,
            va="center",
        )


def _apart(heights: Sequence[float], gap: float) -> Iterator[float]:
    """The heights, which ascend, moved as little as they must to be ``gap`` apart and below 1."""
    placed: list[float] = []
    for height in heights:
        placed.append(max(height, placed[-1] + gap) if placed else max(height, 0.0))
    top = 1.0
    for i in reversed(range(len(placed))):
        placed[i] = min(placed[i], top)
        top = placed[i] - gap
    return iter(placed)
