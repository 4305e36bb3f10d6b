"""Marks: what is drawn into the axes of a panel, from plain data.

- ``Bars``: a cluster for each number of ranks, a stack of bars in it for each strategy.
- ``Curves``: a line with markers for each strategy, its interval, and what did not finish.
- ``Forest``: ratios to the reference, a row each, with the band in which two count as equal.
- ``Map``: a square for each size and number of ranks, in the colour of the fastest.
- ``Trend``: a case over commits.

``iterations`` has that of every iteration of every launch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from spbench.analysis.compare import MARGIN, limits_of
from spbench.report import units
from spbench.report.plots.figure import Mark
from spbench.report.plots.style import (
    LETTER,
    PROJECTED_HATCH,
    SMALL,
    LineLook,
    colour,
    darker,
    hatch,
    lighter,
)
from spbench.text import counted

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

    from spbench.analysis.compare import Comparison
    from spbench.analysis.compare_strategies import Line
    from spbench.analysis.history import Series
UPRIGHT: Mapping[str, Any] = {"rotation": 90, "ha": "center", "va": "bottom"}
RED = "#C00000"


def short(value: float, _: object = None) -> str:
    """A tick's figure in at most six characters or so."""
    return f"{value:,.5g}" if abs(value) < 1e5 else units.count_of(value)


def beside(
    ax: Axes, place: tuple[float, float], text: str, away: tuple[float, float], **look: Any
) -> None:
    """A small grey text, so many points ``away`` from its place."""
    ax.annotate(text, place, away, textcoords="offset points", color="#555555", **look)


def patches(strategies: Sequence[str]) -> dict[str, Artist]:
    """What stands before strategies in a legend: a square each in its colour and hatch."""
    looks: dict[str, Any] = {"linewidth": 0, "edgecolor": "white"}
    return {
        name: Patch(facecolor=colour(name), hatch=hatch(name), **looks)
        for name in dict.fromkeys(strategies)
    }


# ---- Bars ----

BAR_WIDTH = 0.92
"""Share of its place that a bar is wide."""
NOISY_HEIGHT = 0.5
"""Inches of the label of noisy launches, which stands upright above its bar."""
LIMIT_SHOWN = 4
"""A limit of more times the axis is only said: bars would be slivers."""


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


@dataclass(frozen=True, kw_only=True)
class Bars(Mark):
    """A stack for each case; a hatched sliver with its status where it has none."""

    cases: Sequence[tuple[Line, Stack | None]]
    unit: str
    limit: float | None = None
    """Height that no bar may reach: the memory of a device."""

    @property
    def is_projected(self) -> bool:
        return any(line.kind == "projected" for line, _ in self.cases)

    @property
    def legend(self) -> Mapping[str, Artist]:
        return patches([line.strategy for line, _ in self.cases])

    def draw(self, ax: Axes) -> None:
        """Bars of a panel are one call each of matplotlib: a fraction of a call for each bar."""
        ranks = sorted({line.ranks for line, _ in self.cases})
        strategies = list(dict.fromkeys(line.strategy for line, _ in self.cases))
        width, middle = 0.8 / len(strategies), (len(strategies) - 1) / 2
        stacks, failed = [], []
        for line, stack in self.cases:
            place = ranks.index(line.ranks) + (strategies.index(line.strategy) - middle) * width
            if stack is not None:
                stacks.append((place, stack))
            else:
                failed.append((place, line.status if line.status != "ok" else "not measured"))
        ax.set_xlim(-0.6, len(ranks) - 0.4)
        _draw_stacks(ax, stacks, width)
        _draw_slivers(ax, failed, width)
        ax.set_xticks(range(len(ranks)), [str(n) for n in ranks])
        ax.set_ylim(bottom=0)
        if not stacks:
            ax.set_yticks([])
        ax.yaxis.set_major_formatter(short)
        ax.set(xlabel="ranks", ylabel=self.unit)
        if self.limit is not None:
            _draw_limit(ax, self.limit)


def _draw_stacks(ax: Axes, stacks: Sequence[tuple[float, Stack]], width: float) -> None:
    """Bars, whiskers and levels of the stacks at these places."""
    bars = [(at, *bar) for at, stack in stacks for bar in stack.placed]
    ax.use_sticky_edges = False  # a bar of no height on others is no edge
    if bars:
        x, bottoms, heights, looks = zip(*bars, strict=True)
        look: dict[str, Any] = {name: [one[name] for one in looks] for name in looks[0]}
        ax.bar(x, heights, width * BAR_WIDTH, bottoms, **look)
    whiskers = [(at, stack.top, *stack.whisker) for at, stack in stacks if stack.whisker]
    if whiskers:
        x, y, *ends = np.array(whiskers).T
        ax.errorbar(x, y, yerr=ends, fmt="none", ecolor="black", capsize=3, elinewidth=1)
    levels = [(at, height) for at, stack in stacks for height in stack.levels]
    if levels:
        x, y = np.array(levels).T
        ax.hlines(y, x - 0.45 * width, x + 0.45 * width, color="black", lw=1.2)
    mark = NOISY_HEIGHT * ax.figure.dpi / ax.bbox.height  # as a share of the panel's height
    for at, stack in stacks:
        if stack.is_noisy:
            top = max(stack.top + (stack.whisker or (0.0, 0.0))[1], *stack.levels, 0.0)
            ax.text(at, top, " noisy", fontsize=7, **UPRIGHT)
            ax.set_ylim(top=max(ax.get_ylim()[1], top / (1 - mark)))


def _draw_slivers(ax: Axes, failed: Sequence[tuple[float, str]], width: float) -> None:
    """A hatched sliver with what happened in place of a figure."""
    across = ax.get_xaxis_transform()  # x as data, y as a share of the panel's height
    if failed:
        look: dict[str, Any] = {"color": "white", "edgecolor": "grey", "hatch": "xxx"}
        ax.bar([at for at, _ in failed], 0.06, width * BAR_WIDTH, transform=across, **look)
    slot = 72 * width * ax.bbox.width / ax.figure.dpi / np.ptp(ax.get_xlim())  # points of a bar
    for at, text in failed:
        ax.text(at, 0.08, text, fontsize=min(8, max(5, slot)), transform=across, **UPRIGHT)


def _draw_limit(ax: Axes, limit: float) -> None:
    """A line at the memory of a device; only its figure where bars would be slivers under it."""
    top = ax.get_ylim()[1]
    text = f"limit of a device: {limit:,.5g} MiB"
    if limit < LIMIT_SHOWN * top:
        ax.set_ylim(top=max(top, 1.12 * limit))
        ax.axhline(limit, color=RED, lw=1.1, ls=(0, (5, 2)))
        place, data = (1.0, limit), ax.get_yaxis_transform()
    else:
        ax.set_ylim(top=1.12 * top)
        place, data = (1.0, 0.93), ax.transAxes
        text += ", far above"
    ax.text(*place, text, color=RED, size=7, ha="right", va="bottom", transform=data)


# ---- Curves ----

ROW = 8.5 / 72
"""Inches of a row of crosses."""
GAP = 10.8 / 72
"""Inches from a name to the next."""
MOST_FAILED = 6
"""Crosses above each other; more are a number."""


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

    @property
    def name_at_end(self) -> str:
        return self.label if self.x else f"{self.label} (none)"


@dataclass(frozen=True, kw_only=True)
class Curves(Mark):
    """The curves of a panel."""

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
    has_names: bool = False
    """Curves are named at their ends, and not in a legend."""

    @property
    def is_projected(self) -> bool:
        return any(curve.is_projected for curve in self.curves)

    @property
    def legend(self) -> Mapping[str, Artist]:
        looks = {} if self.has_names else {curve.label: curve.look for curve in self.curves}
        size: dict[str, Any] = {"markersize": 5, "lw": 1.3}
        return {
            name: Line2D([], [], color=look.colour, marker=look.marker, ls=look.dashes, **size)
            for name, look in looks.items()
        }

    @property
    def right(self) -> float:
        longest = max(len(curve.name_at_end) for curve in self.curves)
        return 0.35 + 0.062 * longest if self.has_names else 0.15

    @property
    def rows(self) -> int:
        return len(self.curves) + 8 if self.has_names else 0

    def draw(self, ax: Axes) -> None:
        every_x = sorted({x for c in self.curves for x in (*c.x, *(at for at, _ in c.failed))})
        every_y = [y for curve in self.curves for y in curve.y]
        is_log = _is_log(every_x) and all(y > 0 for y in every_y)
        if is_log:
            ax.set(xscale="log", yscale="log" if every_y else "linear")
        if self.is_projected:
            ax.patch.set(hatch=PROJECTED_HATCH, edgecolor="#EEEEEE", linewidth=0)
        for curve in self.curves:
            _draw_curve(ax, curve)
        if self.ideal is not None:
            _draw_ideal(ax, self, every_x, self.ideal)
        crosses = [sum(at == x for c in self.curves for at, _ in c.failed) for x in every_x]
        rows, inches = min(MOST_FAILED, max(crosses, default=0)), ax.bbox.height / ax.figure.dpi
        _set_limits(ax, every_x, every_y, (rows + 0.5) * ROW / inches if rows else 0.0)
        for x in every_x:
            is_last = x == every_x[-1] != every_x[0]
            _draw_crosses(ax, self.curves, x, ROW / inches, is_last=is_last)
        _set_ticks(ax, every_x if self.has_ticks_at_points else None, is_log=is_log)
        ax.grid(color="#E5E5E5", lw=0.5)
        ax.set(xlabel=self.x, ylabel=self.y)
        if not every_y and self.missing:
            where: dict[str, Any] = {"transform": ax.transAxes, "ha": "center", "va": "center"}
            if not every_x:
                ax.set_xticks([])
            ax.text(0.5, 0.62, self.missing, size=8.5, color="#555555", **where)
        if self.has_names:
            _name_curves(ax, self.curves, GAP / inches)


def _draw_curve(ax: Axes, curve: Curve) -> None:
    own = curve.look.colour
    look: dict[str, Any] = {
        "color": lighter(own, 0.6) if curve.is_projected else own,
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
    points = zip(curve.x, curve.y, curve.noisy, strict=True)
    noisy = [(x, y) for x, y, is_noisy in points if is_noisy]
    if noisy:
        ax.plot(*zip(*noisy, strict=True), "o", mfc="none", mec="black", mew=0.9, markersize=10)
    for x, y, text in zip(curve.x, curve.y, curve.texts, strict=False):
        beside(ax, (x, y), text, (4, 3), size=SMALL, ha="left")


def _draw_ideal(ax: Axes, mark: Curves, every_x: Sequence[float], power: float) -> None:
    """From the best strategy on the fewest ranks on, as that would go on without communication.

    Noisy launches are not ranked, so none of theirs is the best.
    """
    drawn = [curve for curve in mark.curves if curve.x]
    start = min((curve.x[0] for curve in drawn), default=None)
    firsts = [curve.y[0] for curve in drawn if curve.x[0] == start and not curve.noisy[0]]
    if len(every_x) < 2 or start is None or not firsts:
        return
    best = min(firsts) if power < 0 else max(firsts)
    x = np.geomspace(start, every_x[-1], 33)  # straight on axes of either scale
    y = best * (x / start) ** power
    ax.plot(x, y, color="#888888", lw=0.9, ls=(0, (1, 1.5)), zorder=1)
    middle = len(x) // 2
    away, side = ((-3, 3), "right") if power >= 0 else ((3, 3), "left")
    beside(ax, (x[middle], y[middle]), mark.ideal_name, away, size=SMALL, ha=side)


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
    # What was the whole height becomes 1 - below of it, so below / (1 - below) of it is added.
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


def _draw_crosses(
    ax: Axes, curves: Sequence[Curve], x: float, row: float, *, is_last: bool
) -> None:
    """A cross at the bottom for each case without a figure at ``x``, above each other, and why.

    Words stand left of the last x, whose right is the names' place.
    """
    across = ax.get_xaxis_transform()
    failed = [(curve, why) for curve in curves for at, why in curve.failed if at == x]
    shown = failed if len(failed) <= MOST_FAILED else failed[: MOST_FAILED - 1]
    words = [why for _, why in shown]
    if len(failed) > len(shown):
        words.append(f"and {len(failed) - len(shown)} more")
    away, side = (-4.5, "right") if is_last else (4.5, "left")
    look: dict[str, Any] = {"size": 6, "ha": side, "va": "center", "xycoords": across}
    for i, text in enumerate(words):
        height = (i + 0.6) * row
        if i < len(shown):
            own = shown[i][0].look.colour
            ax.plot([x], [height], "x", color=own, markersize=4.5, mew=1.4, transform=across)
        beside(ax, (x, height), text, (away, 0), **look)


def _name_curves(ax: Axes, curves: Sequence[Curve], row: float) -> None:
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
        style = {"arrowstyle": "-", "color": lighter(own, 0.5), "lw": 0.7, "shrinkB": 2}
        style["relpos"] = (0.0, 0.5)  # to where the name begins
        ax.annotate(
            curve.name_at_end,
            last or (1.0, place),
            (1.03, place),
            xycoords="data" if last else "axes fraction",
            textcoords="axes fraction",
            arrowprops=style if last else None,
            color=darker(own),
            size=7.5,
            va="center",
        )


def _apart(heights: Sequence[float], gap: float) -> Iterator[float]:
    """The heights, which ascend, moved as little as they must to be ``gap`` apart and below 1."""
    placed: list[float] = []
    for height in heights:
        placed.append(max(height, placed[-1] + gap) if placed else max(height, 0.0))
    # That may have pushed the last above 1: from there down each makes room for the one above.
    top = 1.0
    for i in reversed(range(len(placed))):
        placed[i] = min(placed[i], top)
        top = placed[i] - gap
    return iter(placed)


# ---- Ratios ----


def ratio_label(line: Line) -> str:
    """The label of a row of the forest plot; a ratio of noisy launches says so."""
    is_noisy = line.to_reference is not None and line.to_reference.is_noisy
    return f"{line.strategy}, {counted(line.ranks, 'rank')}{', noisy' if is_noisy else ''}"


@dataclass(frozen=True, kw_only=True)
class Forest(Mark):
    """How much longer each strategy takes than the reference: rows from the top, in the order of
    the lines, which all have a ratio; the axis is logarithmic.

    An interval wholly within the band is the same, wholly outside it faster or slower; a hollow
    dot marks no significant difference.
    """

    lines: Sequence[Line]
    margin: float = MARGIN

    @property
    def is_projected(self) -> bool:
        return any(line.kind == "projected" for line in self.lines)

    @property
    def left(self) -> float:
        return 0.3 + LETTER * max(len(ratio_label(line)) for line in self.lines)

    @property
    def rows(self) -> int:
        return len(self.lines) + 1

    def draw(self, ax: Axes) -> None:
        ax.axvspan(*limits_of(self.margin), color="#EEEEEE", lw=0, zorder=0)
        ax.axvline(1.0, color="#888888", lw=0.8, zorder=1)
        rows = [(-y, x.to_reference, colour(x.strategy)) for y, x in enumerate(self.lines)]
        # As in the table, a ratio of noisy launches has no interval: it is no evidence.
        spans = [
            (y, x.low, x.high, hue)
            for y, x, hue in rows
            if x and x.low and x.high and not x.is_noisy
        ]
        if spans:
            y, low, high, hues = zip(*spans, strict=True)
            ax.hlines(y, low, high, colors=hues, lw=1.6, zorder=2)
        look: dict[str, Any] = {"s": 30, "lw": 1.2}
        if is_projected := all(line.kind == "projected" for line in self.lines):
            look = {"s": 70, "hatch": 2 * PROJECTED_HATCH}
        dots = [
            (x.ratio, y, hue, _filling(x, hue, is_projected=is_projected))
            for y, x, hue in rows
            if x
        ]
        ratio, y, hues, fillings = zip(*dots, strict=True)
        ax.scatter(ratio, y, c=fillings, edgecolors=hues, zorder=3, **look)
        ax.set_xscale("log")
        ticks = ratio_ticks(*ax.get_xlim())
        ax.set_xlim(min(ticks[0], ax.get_xlim()[0]), max(ticks[-1], ax.get_xlim()[1]))
        ax.xaxis.set_major_locator(FixedLocator(ticks))
        ax.xaxis.set_minor_locator(NullLocator())
        ax.xaxis.set_major_formatter("{x:g}x")
        ax.set_yticks([-float(row) for row in range(len(rows))], [*map(ratio_label, self.lines)])
        ax.set_ylim(0.6 - len(rows), 0.6)
        ax.set_xlabel(f"step time against {self.lines[0].reference}'s")


def _filling(ratio: Comparison, hue: str, *, is_projected: bool) -> Any:
    """The colour of a dot's inside."""
    if is_projected:
        return lighter(hue)
    return "white" if ratio.verdict == "inconclusive" else hue


def ratio_ticks(low: float, high: float) -> list[float]:
    """Ratios from ``low`` to ``high``: 1, one or more below it and one or more above it."""
    if high > 3 * low:
        # Over decades 1, 2 and 5 of each, over many of them 1 alone, over a great many every other.
        every = 1 if high < 100 * low else 3 if high < 1e6 * low else 6
        ticks = [n * 10.0**power for power in range(-6, 7) for n in (1, 2, 5)][::every]
    else:
        step = next(s for s in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5) if high - low <= 6 * s)
        ticks = [round(1 + n * step, 2) for n in range(-6, 7) if n * step > -0.9]
    nearest = max(t for t in ticks if t < 1), min(t for t in ticks if t > 1)
    return [t for t in ticks if t in (1, *nearest) or low <= t <= high]


# ---- The map of winners ----

GREY = "#EFEFEF"
UNRANKED_HATCH = "xxx"


class Winner(NamedTuple):
    """Which strategy wins at one size on one number of ranks; blank: none does."""

    strategy: str
    is_sure: bool
    """Whether it is told apart from all others."""
    text: str
    is_ranked: bool = True
    """False where noise forbids to say who wins."""


@dataclass(frozen=True, kw_only=True)
class Map(Mark):
    """Winners of one workload, by row and column; rows are sizes, columns numbers of ranks."""

    winners: Mapping[tuple[int, int], Winner]
    sizes: Sequence[str]
    ranks: Sequence[int]
    kind: str

    @property
    def is_projected(self) -> bool:
        return self.kind == "projected"

    @property
    def legend(self) -> Mapping[str, Artist]:
        return patches([winner.strategy for winner in self.winners.values() if winner.strategy])

    @property
    def left(self) -> float:
        return 0.3 + LETTER * max(map(len, self.sizes))

    @property
    def rows(self) -> int:
        return 2 * len(self.sizes) + 1

    def draw(self, ax: Axes) -> None:
        width = 72 * ax.bbox.width / ax.figure.dpi / len(self.ranks)  # points of a cell
        for (row, column), winner in self.winners.items():
            own = colour(winner.strategy) if winner.strategy else GREY
            tone = to_rgb(own) if winner.is_sure else lighter(own)
            ax.bar(column, 1, 1, row - 0.5, color=tone, edgecolor="white", lw=1.5)
            pattern = PROJECTED_HATCH if self.is_projected else hatch(winner.strategy)
            light: tuple[float, ...] = (1, 1, 1, 0.45)
            if not winner.is_ranked:
                pattern, light = UNRANKED_HATCH, to_rgb("#D0D0D0")
            if pattern:
                ax.bar(column, 1, 1, row - 0.5, color="none", edgecolor=light, hatch=pattern, lw=0)
            words = "\n".join(filter(None, [winner.strategy.replace(":", "\n", 1), winner.text]))
            longest = max(map(len, words.split("\n")))
            ax.text(
                *(column, row, words),
                ha="center",
                va="center",
                size=max(4.5, min(7.5, 1.55 * width / longest)),
                color="white" if sum(tone) < 1.6 else "black",
                linespacing=1.1,
            )
        ax.set_xticks(range(len(self.ranks)), [str(n) for n in self.ranks])
        ax.set_yticks(range(len(self.sizes)), self.sizes)
        ax.set(xlim=(-0.5, len(self.ranks) - 0.5), ylim=(-0.5, len(self.sizes) - 0.5))
        ax.tick_params(length=0)
        ax.set(xlabel="ranks")


# ---- A case over commits ----

LEAST_ROOM = 0.1
"""The axis spans at least so much of a step, so that no noise looks like a change."""
MOST_COMMITS = 8
"""Commits that are named below the axis."""
COMMIT = 9
"""Characters of a commit."""


@dataclass(frozen=True, kw_only=True)
class Trend(Mark):
    """The step time of a case at each commit, and in red the first one where it got worse."""

    series: Series

    def draw(self, ax: Axes) -> None:
        points = self.series.points
        timed = {i: p.step_ms for i, p in enumerate(points) if p.step_ms is not None}
        steps, own = [*timed.values()], colour(self.series.strategy)
        # Equal launches have a mean that rounding may put outside their range.
        ends = [
            [max(0.0, step.mean - step.low) for step in steps],
            [max(0.0, step.high - step.mean) for step in steps],
        ]
        means = [step.mean for step in steps]
        ax.errorbar([*timed], means, yerr=ends, color=own, marker="o", markersize=4, capsize=3)
        worse = self.series.worse.get("time", -1)
        if worse in timed:
            place = worse, timed[worse].mean
            ax.plot(*place, "o", color=RED, markersize=7, zorder=3)
            look: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "size": 8}
            ax.annotate("worse from here", place, (0, 9), color=RED, **look)
        named = range(0, len(points), math.ceil(len(points) / MOST_COMMITS))
        ax.set_xticks(named, [points[i].commit[:COMMIT] for i in named], size=7)
        ax.set_xlim(-0.5, len(points) - 0.5)
        low, high = min(step.low for step in steps), max(step.high for step in steps)
        room = max(high - low, LEAST_ROOM * high) / 3
        ax.set_ylim(max(0.0, low - room), high + room)
        ax.set_ylabel("compute share, ms" if self.series.is_share else "step ms")
        ax.grid(axis="y", color="#DDDDDD", linewidth=0.6)
