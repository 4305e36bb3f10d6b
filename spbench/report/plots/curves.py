"""Curves: a line with markers for each strategy, its interval, and what did not finish.

Scaling is the throughput over ranks; throughput against memory has a figure for its x, too, and
names the ranks at each point. A sheet has a panel for each group of curves.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from spbench.report.plots import looks
from spbench.report.plots.bars import short
from spbench.report.plots.curve import (
    GAP,
    ROW,
    Curve,
    CurvePanel,
    beside,
    label_ends,
    mark_failed,
    name_at_end,
    rows_of_failed,
)
from spbench.report.plots.figure import SMALL, Sheet

MOST_LABELS = 14
"""Curves that are named at their ends; more have a legend."""
WIDE = 4
"""Panels that have room for labels at their right."""


def draw_curves(ax: Axes, panel: CurvePanel, *, has_labels: bool) -> None:
    """Curves of a panel; ``has_labels``: named at their ends, not in a legend."""
    every_x = sorted({x for c in panel.curves for x in (*c.x, *(at for at, _ in c.failed))})
    every_y = [y for c in panel.curves for y in c.y]
    is_log = _is_log(every_x) and all(y > 0 for y in every_y)
    if is_log:
        ax.set(xscale="log", yscale="log" if every_y else "linear")
    if panel.is_projected:
        ax.patch.set(hatch=looks.PROJECTED_HATCH, edgecolor="#EEEEEE", linewidth=0)
    for curve in panel.curves:
        _draw(ax, curve)
    if panel.ideal is not None:
        _draw_ideal(ax, panel.curves, every_x, panel.ideal, panel.ideal_name)
    rows = rows_of_failed(panel.curves, every_x)
    inches = ax.bbox.height / ax.figure.dpi
    _set_limits(ax, every_x, every_y, (rows + 0.5) * ROW / inches if rows else 0.0)
    mark_failed(ax, panel.curves, every_x, ROW / inches)
    _set_ticks(ax, every_x if panel.has_ticks_at_points else None, is_log=is_log)
    ax.grid(color="#E5E5E5", lw=0.5)
    ax.set(xlabel=panel.x, ylabel=panel.y)
    if not every_y and panel.missing:
        where: dict[str, Any] = {"transform": ax.transAxes, "ha": "center", "va": "center"}
        if not every_x:
            ax.set_xticks([])
        ax.text(0.5, 0.62, panel.missing, size=8.5, color="#555555", **where)
    if has_labels:
        label_ends(ax, panel.curves, GAP / inches)


def _draw(ax: Axes, curve: Curve) -> None:
    own = curve.look.colour
    look: dict[str, Any] = {
        "color": looks.lighter(own, 0.6) if curve.is_projected else own,
        "marker": curve.look.marker,
        "linestyle": curve.look.dashes,
        "markersize": 5,
        "lw": 1.3,
    }
    ends = np.array([curve.low, curve.high])
    if ends.any():
        ax.errorbar(curve.x, curve.y, yerr=ends, capsize=2.5, elinewidth=0.9, **look)
    elif curve.x:
        ax.plot(curve.x, curve.y, **look)
    noisy = [
        (x, y) for x, y, is_noisy in zip(curve.x, curve.y, curve.noisy, strict=True) if is_noisy
    ]
    if noisy:
        ax.plot(*zip(*noisy, strict=True), "o", mfc="none", mec="black", mew=0.9, markersize=10)
    for x, y, text in zip(curve.x, curve.y, curve.texts, strict=False):
        beside(ax, (x, y), text, (4, 3), size=SMALL, ha="left")


def _draw_ideal(
    ax: Axes, curves: Sequence[Curve], every_x: Sequence[float], power: float, name: str
) -> None:
    """From the best strategy on the fewest ranks on, as that would go on without communication.

    Noisy launches are not ranked, so none of theirs is the best.
    """
    start = min((c.x[0] for c in curves if c.x), default=None)
    firsts = [(c.x[0], c.y[0]) for c in curves if c.x and c.x[0] == start and not c.noisy[0]]
    if len(every_x) < 2 or start is None or not firsts:
        return
    best = (min if power < 0 else max)(y for _, y in firsts)
    x = np.geomspace(start, every_x[-1], 33)
    y = best * (x / start) ** power
    ax.plot(x, y, color="#888888", lw=0.9, ls=(0, (1, 1.5)), zorder=1)
    middle = len(x) // 2
    away, side = ((-3, 3), "right") if power >= 0 else ((3, 3), "left")
    beside(ax, (x[middle], y[middle]), name, away, size=SMALL, ha=side)


def _is_log(every_x: Sequence[float]) -> bool:
    """Whether each x is a power of two, or they reach far."""
    if len(every_x) < 2 or every_x[0] <= 0:
        return False
    return every_x[-1] >= 8 * every_x[0] or all(np.log2(x) % 1 == 0 for x in every_x)


def _set_limits(ax: Axes, every_x: Sequence[float], every_y: Sequence[float], below: float) -> None:
    """A part ``below`` of the height is kept free under the points."""
    if not every_y:
        ax.set(ylim=(0, 1), yticks=[])
    low, high = ax.get_ylim()
    if ax.get_yscale() == "log":
        ax.set_ylim(low * (low / high) ** (below / (1 - below)), high)
    else:
        low, high = min(0.0, low), max(high, 1.06 * max(every_y, default=0.0))
        ax.set_ylim(low - (high - low) * below / (1 - below), high)
    if len(every_x) > 1 and ax.get_xscale() == "log":
        room = (every_x[-1] / every_x[0]) ** 0.06
        ax.set_xlim(every_x[0] / room, every_x[-1] * room)
    elif every_x:
        room = 0.06 * (every_x[-1] - every_x[0]) or 0.5 * abs(every_x[0]) or 1.0
        ax.set_xlim(every_x[0] - room, every_x[-1] + room)


def _set_ticks(ax: Axes, at: Sequence[float] | None, *, is_log: bool) -> None:
    if ax.get_yscale() == "log":
        low, high = ax.get_ylim()
        subs = (1.0, 2.0, 5.0) if high < 300 * low else (1.0,)
        ax.yaxis.set_major_locator(
            LogLocator(subs=subs) if high > 8 * low else MaxNLocator(5, steps=[1, 2, 5, 10])
        )
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(short))
    if at is not None:
        ax.set_xticks(at, [f"{x:g}" for x in at])
    elif is_log:
        low, high = ax.get_xlim()
        ax.xaxis.set_major_locator(
            LogLocator(subs=(1.0, 2.0, 5.0)) if high < 100 * low else LogLocator()
        )
    else:
        ax.xaxis.set_major_locator(MaxNLocator(6))


def curve_sheet(panels: Mapping[str, CurvePanel], about: str, heading: str) -> Sheet:
    """Panels of curves, named at their ends where there is room, else by a legend."""
    curves = [curve for panel in panels.values() for curve in panel.curves]
    most = max(len(panel.curves) for panel in panels.values())
    has_labels = len(panels) <= WIDE and most <= MOST_LABELS
    longest = max(len(name_at_end(curve)) for curve in curves)
    notes = ["bars: 95 % intervals, or ranges of fewer than three launches"] * any(
        any(curve.low) or any(curve.high) for curve in curves if not curve.is_projected
    )
    notes += ["of projected steps 90 % intervals"] * any(
        any(curve.low) for curve in curves if curve.is_projected
    )
    if any(any(curve.noisy) for curve in curves):
        notes.append("circled: noisy launches, which are not ranked; no ideal line begins there")
    notes += ["cross: no figure, and why"] * any(curve.failed for curve in curves)
    return Sheet(
        heading=heading,
        panels={
            title: partial(draw_curves, panel=panel, has_labels=has_labels)
            for title, panel in panels.items()
        },
        caption=" · ".join([about, *notes]),
        lines={} if has_labels else {curve.label: curve.look for curve in curves},
        has_projected=any(panel.is_projected for panel in panels.values()),
        rows=most + 8 if has_labels else 0,
        end_width=0.35 + 0.062 * longest if has_labels else 0.15,
    )
