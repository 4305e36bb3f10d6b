"""What is drawn into one panel: the strategies of one workload, by number of ranks.

The forest plot of ratios has a row for each strategy on a number of ranks. An interval wholly
within the band is the same, wholly outside it faster or slower; a hollow dot marks no significant
difference.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.ticker import FixedLocator, NullLocator

from spbench.analysis.compare import MARGIN, limits_of
from spbench.analysis.compare_strategies import Line
from spbench.report.plots.bars import Stack, draw_stacks
from spbench.report.plots.looks import PROJECTED_HATCH, colour, fill, hatch, lighter
from spbench.text import counted

PHASE_SHADES = {"forward": 1.0, "backward": 0.6, "gradients": 0.3}
MIB = 2**20
LIMIT_SHOWN = 4
"""A limit of more times the axis is only said: bars would be slivers."""


def _tokens(line: Line) -> Stack | None:
    value, step, whisker = line.tokens_per_s, line.step_ms, None
    if value is None:
        return None
    if step is not None and (line.launches >= 2 or line.kind == "projected"):
        slow, fast = value * step.mean / step.high, value * step.mean / step.low
        whisker = max(0.0, value - slow), max(0.0, fast - value)  # equal launches: rounding
    return Stack(
        bars=[(value, fill(line.strategy, line.kind))], whisker=whisker, is_noisy=line.is_noisy
    )


def _peak(line: Line) -> Stack | None:
    if line.peak_allocated_bytes is None:
        return None
    return Stack(bars=[(line.peak_allocated_bytes / MIB, fill(line.strategy, line.kind))])


def _phases(line: Line) -> Stack | None:
    bars, levels, predicted_mib = [], [], 0.0
    for phase, shade in PHASE_SHADES.items():
        sent, predicted = line.sent_bytes[phase], line.predicted_bytes[phase]
        if sent is not None:
            look = {
                "color": to_rgba(colour(line.strategy), shade),
                "hatch": hatch(line.strategy),
                "edgecolor": to_rgba("white", shade),
                "linewidth": 0.5,
            }
            bars.append((sent / MIB, look))
        if predicted:
            predicted_mib += predicted / MIB
            levels.append(predicted_mib)
    return Stack(bars=bars, levels=levels) if bars or levels else None


def _parts(line: Line) -> Stack | None:
    if line.compute_ms is None:
        return None
    look = {"color": "white", "hatch": "////", "edgecolor": colour(line.strategy), "linewidth": 0.8}
    exposed_ms = max(line.exposed_comm_ms or 0.0, 0.0)
    return Stack(
        bars=[(line.compute_ms, fill(line.strategy, line.kind)), (exposed_ms, look)],
        levels=[line.step_ms.mean] if line.step_ms else [],
        is_noisy=line.is_noisy,
    )


throughput = partial(draw_stacks, stack_of=_tokens, unit="tokens / s, all ranks")
"""Tokens per second of all ranks together; the whisker is the launches' interval, or range."""


def memory(ax: Axes, lines: Sequence[Line]) -> None:
    """Peak of allocated memory, the largest rank, and what a device has, if the rows know it."""
    draw_stacks(ax, lines, _peak, "MiB allocated")
    limit = min((x.memory_limit_bytes / MIB for x in lines if x.memory_limit_bytes), default=None)
    if limit is None:
        return
    top = ax.get_ylim()[1]
    text = f"limit of a device: {limit:,.5g} MiB"
    if limit < LIMIT_SHOWN * top:
        ax.set_ylim(top=max(top, 1.12 * limit))
        ax.axhline(limit, color="#C00000", lw=1.1, ls=(0, (5, 2)))
        place, data = (1.0, limit), ax.get_yaxis_transform()
    else:
        ax.set_ylim(top=1.12 * top)
        place, data = (1.0, 0.93), ax.transAxes
        text += ", far above"
    ax.text(*place, text, color="#C00000", size=7, ha="right", va="bottom", transform=data)


sent_bytes = partial(draw_stacks, stack_of=_phases, unit="MiB")
"""Counted bytes by phase; a black line is the prediction of the phases up to it."""
step_split = partial(draw_stacks, stack_of=_parts, unit="ms")
"""A step's computation, and what its communication adds to it."""


def compared(line: Line) -> bool:
    """Whether a line has a ratio to another strategy."""
    times = line.to_reference
    return times is not None and times.ratio is not None and line.strategy != line.reference


def label(line: Line) -> str:
    """The label of a row of the forest plot; a ratio of noisy launches says so."""
    is_noisy = line.to_reference is not None and line.to_reference.is_noisy
    return f"{line.strategy}, {counted(line.ranks, 'rank')}{', noisy' if is_noisy else ''}"


def ratio_ticks(low: float, high: float) -> list[float]:
    """Ratios from ``low`` to ``high``: 1, one or more below it and one or more above it."""
    if high > 3 * low:
        every = 1 if high < 100 * low else 3 if high < 1e6 * low else 6
        known = [n * 10.0**power for power in range(-6, 7) for n in (1, 2, 5)][::every]
    else:
        step = next(s for s in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5) if high - low <= 6 * s)
        known = [round(1 + n * step, 2) for n in range(-6, 7) if n * step > -0.9]
    fewest = max(t for t in known if t < 1), min(t for t in known if t > 1)
    return [t for t in known if t in (1, *fewest) or low <= t <= high]


def ratios(ax: Axes, lines: Sequence[Line], margin: float = MARGIN) -> None:
    """How much longer each strategy takes than the reference: rows from the top, in the order of
    the lines; the axis is logarithmic."""
    shown = [line for line in lines if compared(line)]
    ax.axvspan(*limits_of(margin), color="#EEEEEE", lw=0, zorder=0)
    ax.axvline(1.0, color="#888888", lw=0.8, zorder=1)
    is_projected = bool(shown) and all(line.kind == "projected" for line in shown)
    rows = [(-row, line.to_reference, colour(line.strategy)) for row, line in enumerate(shown)]
    # As in the table, a ratio of noisy launches has no interval: it is no evidence.
    spans = [
        (y, x.low, x.high, hue) for y, x, hue in rows if x and x.low and x.high and not x.is_noisy
    ]
    if spans:
        y, low, high, hues = zip(*spans, strict=True)
        ax.hlines(y, low, high, colors=hues, lw=1.6, zorder=2)
    dots = [
        (x.ratio, y, hue, light if is_projected or x.verdict == "inconclusive" else hue)
        for y, x, hue in rows
        for light in [lighter(hue) if is_projected else "white"]
        if x and x.ratio
    ]
    if dots:
        ratio, y, hues, fillings = zip(*dots, strict=True)
        look: dict[str, Any] = {"s": 30, "lw": 1.2}
        if is_projected:
            look = {"s": 70, "hatch": 2 * PROJECTED_HATCH}
        ax.scatter(ratio, y, c=fillings, edgecolors=hues, zorder=3, **look)
    ax.set_xscale("log")
    ticks = ratio_ticks(*ax.get_xlim())
    ax.set_xlim(min(ticks[0], ax.get_xlim()[0]), max(ticks[-1], ax.get_xlim()[1]))
    ax.xaxis.set_major_locator(FixedLocator(ticks))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter("{x:g}x")
    ax.set_yticks([-float(row) for row in range(len(shown))], list(map(label, shown)))
    ax.set_ylim(0.6 - len(shown), 0.6)
    ax.set_xlabel(f"step time against {shown[0].reference}'s" if shown else "")
