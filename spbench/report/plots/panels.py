"""What is drawn into one panel: the strategies of one workload, by number of ranks."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes

from spbench.analysis.compare_strategies import Line
from spbench.report.plots.bars import (
    bars,
    colour,
    fill,
    hatch,
    levels,
    mark_failed,
    places_of,
    rank_ticks,
)

PHASE_SHADES = {"forward": 1.0, "backward": 0.6, "gradients": 0.3}
MIB = 2**20


def throughput(ax: Axes, lines: Sequence[Line]) -> None:
    """Tokens per second of all ranks together; the whisker is the launches' interval, or range."""

    def height(line: Line) -> float | None:
        return line.tokens_per_s

    def whisker(line: Line) -> tuple[float, float] | None:
        if line.step_ms is None or line.tokens_per_s is None or line.launches < 2:
            return None
        step, value = line.step_ms, line.tokens_per_s
        slow, fast = value * step.median / step.high, value * step.median / step.low
        return max(0.0, value - slow), max(0.0, fast - value)  # equal launches: rounding

    bars(ax, lines, height, whisker)
    ax.set_ylabel("tokens / s, all ranks")


def memory(ax: Axes, lines: Sequence[Line]) -> None:
    """Peak of allocated memory, the largest rank."""

    def height(line: Line) -> float | None:
        return None if line.peak_allocated_bytes is None else line.peak_allocated_bytes / MIB

    bars(ax, lines, height)
    ax.set_ylabel("MiB allocated")


def sent_bytes(ax: Axes, lines: Sequence[Line]) -> None:
    """Stacked by phase, as counted; the black tick is the prediction of the phases up to it."""
    places, width = places_of(lines)
    ticks: list[tuple[float, float]] = []
    for line, at in zip(lines, places, strict=True):
        if line.status != "ok":
            mark_failed(ax, at, width, line)
            continue
        below = predicted_below = 0.0
        for phase, shade in PHASE_SHADES.items():
            sent, predicted = line.sent_bytes[phase], line.predicted_bytes[phase]
            if sent is not None:
                ax.bar(
                    at,
                    sent / MIB,
                    width * 0.92,
                    bottom=below,
                    color=colour(line.strategy),
                    alpha=shade,
                    hatch=hatch(line.strategy),
                    edgecolor="white",
                    linewidth=0.5,
                )
                below += sent / MIB
            predicted_below += (predicted or 0) / MIB
            if predicted:
                ticks.append((at, predicted_below))
    levels(ax, ticks, width)
    rank_ticks(ax, lines)
    ax.set_ylabel("MiB")


def step_split(ax: Axes, lines: Sequence[Line]) -> None:
    """A step's computation, and what its communication adds to it."""
    places, width = places_of(lines)
    steps: list[tuple[float, float]] = []
    for line, at in zip(lines, places, strict=True):
        if line.compute_ms is None:
            mark_failed(ax, at, width, line)
            continue
        shown = colour(line.strategy)
        ax.bar(at, line.compute_ms, width * 0.92, **fill(line.strategy))
        exposed = max(line.exposed_comm_ms or 0.0, 0.0)
        ax.bar(
            at,
            exposed,
            width * 0.92,
            bottom=line.compute_ms,
            color="white",
            edgecolor=shown,
            hatch="////",
            linewidth=0.8,
        )
        if line.step_ms is not None:
            steps.append((at, line.step_ms.median))
    levels(ax, steps, width)
    rank_ticks(ax, lines)
    ax.set_ylabel("ms")
