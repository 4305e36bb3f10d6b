"""What is drawn into one panel: the strategies of one workload, by number of ranks."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.colors import to_rgba

from spbench.analysis.compare_strategies import Line
from spbench.report.plots.bars import Stack, colour, draw_stacks, fill, hatch

PHASE_SHADES = {"forward": 1.0, "backward": 0.6, "gradients": 0.3}
MIB = 2**20


def throughput(ax: Axes, lines: Sequence[Line]) -> None:
    """Tokens per second of all ranks together; the whisker is the launches' interval, or range."""
    draw_stacks(ax, lines, _tokens, "tokens / s, all ranks")


def _tokens(line: Line) -> Stack | None:
    value, step, whisker = line.tokens_per_s, line.step_ms, None
    if line.status != "ok" or value is None:
        return None
    if step is not None and line.launches >= 2:
        slow, fast = value * step.median / step.high, value * step.median / step.low
        whisker = max(0.0, value - slow), max(0.0, fast - value)  # equal launches: rounding
    return Stack(bars=[(value, fill(line.strategy))], whisker=whisker)


def memory(ax: Axes, lines: Sequence[Line]) -> None:
    """Peak of allocated memory, the largest rank."""
    draw_stacks(ax, lines, _peak, "MiB allocated")


def _peak(line: Line) -> Stack | None:
    if line.status != "ok" or line.peak_allocated_bytes is None:
        return None
    return Stack(bars=[(line.peak_allocated_bytes / MIB, fill(line.strategy))])


def sent_bytes(ax: Axes, lines: Sequence[Line]) -> None:
    """Counted bytes by phase; a black line is the prediction of the phases up to it."""
    draw_stacks(ax, lines, _phases, "MiB")


def _phases(line: Line) -> Stack | None:
    if line.status != "ok":
        return None
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
    return Stack(bars=bars, levels=levels)


def step_split(ax: Axes, lines: Sequence[Line]) -> None:
    """A step's computation, and what its communication adds to it."""
    draw_stacks(ax, lines, _parts, "ms")


def _parts(line: Line) -> Stack | None:
    if line.compute_ms is None:
        return None
    look = {"color": "white", "hatch": "////", "edgecolor": colour(line.strategy), "linewidth": 0.8}
    exposed_ms = max(line.exposed_comm_ms or 0.0, 0.0)
    return Stack(
        bars=[(line.compute_ms, fill(line.strategy)), (exposed_ms, look)],
        levels=[line.step_ms.median] if line.step_ms else [],
    )
