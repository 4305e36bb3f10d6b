"""The figures of a run, each as PNG and SVG.

Made from records alone, so they can be drawn again a year later. A caption says where the
figures come from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from spbench.judge.side_by_side import Line
from spbench.report.bars import (
    bars,
    colour,
    fill,
    mark_failed,
    places_of,
    rank_ticks,
    strategy_legend,
)
from spbench.results.record import Record

SHARE_DRAWINGS = ("memory", "step_split")
PHASE_SHADES = {"forward": 1.0, "backward": 0.6, "gradients": 0.3}
STYLE = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "figure.dpi": 130,
    "svg.hashsalt": "spbench",
}


def draw_all(lines: Sequence[Line], records: Sequence[Record], folder: Path) -> Iterator[Path]:
    """Writes every figure that the run has data for; yields the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    drawings: dict[str, Callable[[Axes, Sequence[Line]], None]] = {
        "throughput": throughput,
        "memory": memory,
        "sent_bytes": sent_bytes,
        "step_split": step_split,
    }
    with mpl.rc_context(STYLE):  # type: ignore[arg-type]
        for name, draw in drawings.items():
            # A share has no step and sends nothing: it has no place in those figures.
            has_it = name in SHARE_DRAWINGS
            drawn = [line for line in lines if has_it or line.kind == "measured"]
            panels = list(dict.fromkeys(line.panel for line in drawn))
            if not panels:
                continue
            figure, axes = plt.subplots(
                len(panels), 1, figsize=(7.2, 4.0 * len(panels)), squeeze=False
            )
            for ax, panel in zip(axes[:, 0], panels, strict=True):
                draw(ax, [line for line in lines if line.panel == panel])
                ax.set_title(f"{ax.get_title(loc='left')}\n{panel}", fontsize=9.5)
            yield from _save(figure, folder / name, caption(records))
            plt.close(figure)


def caption(records: Sequence[Record]) -> str:
    """Run, device, torch and dtype of what is drawn, and how often each case was launched."""
    first = records[0]

    def each(name: str) -> str:
        return ", ".join(dict.fromkeys(str(getattr(r, name)) for r in records if getattr(r, name)))

    launches = 1 + max(record.launch for record in records)
    spread = "bars: range of launches" if launches > 1 else "one launch: no spread between launches"
    return (
        f"run {first.run_id} · {each('gpu') or first.device} · {each('backend')} · "
        f"torch {each('torch')} · {each('dtype')} · {each('mode')} · {spread}"
    )


def throughput(ax: Axes, lines: Sequence[Line]) -> None:
    """Tokens per second of all ranks together; the whisker is the range over launches."""

    def height(line: Line) -> float | None:
        return line.tokens_per_s

    def whisker(line: Line) -> tuple[float, float] | None:
        if line.step_ms is None or line.tokens_per_s is None or line.launches < 2:
            return None
        step, value = line.step_ms, line.tokens_per_s
        slow, fast = value * step.median / step.high, value * step.median / step.low
        return max(0.0, value - slow), max(0.0, fast - value)  # equal launches: rounding

    bars(ax, lines, height, whisker)
    ax.set_title("Throughput")
    ax.set_ylabel("tokens / s, all ranks")


def memory(ax: Axes, lines: Sequence[Line]) -> None:
    """Peak of allocated memory, the largest rank."""

    def height(line: Line) -> float | None:
        return None if line.peak_allocated_bytes is None else line.peak_allocated_bytes / 2**20

    bars(ax, lines, height)
    ax.set_title("Peak memory of a rank")
    ax.set_ylabel("MiB allocated")


def sent_bytes(ax: Axes, lines: Sequence[Line]) -> None:
    """Stacked by phase, as counted; the black tick is the prediction of the phases up to it."""
    places, width = places_of(lines)
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
                    sent / 2**20,
                    width * 0.92,
                    bottom=below,
                    color=colour(line.strategy),
                    alpha=shade,
                    edgecolor="white",
                    linewidth=0.5,
                )
                below += sent / 2**20
            predicted_below += (predicted or 0) / 2**20
            if predicted:
                ax.hlines(
                    predicted_below, at - 0.45 * width, at + 0.45 * width, color="black", lw=1.2
                )
    strategy_legend(ax, lines)
    rank_ticks(ax, lines)
    ax.set_title("Sent by one rank in a step (bars), predicted (lines)")
    ax.set_ylabel("MiB  (dark to light: forward,\nbackward, gradients)")


def step_split(ax: Axes, lines: Sequence[Line]) -> None:
    """A step's computation, and what its communication adds to it."""
    places, width = places_of(lines)
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
            ax.hlines(
                line.step_ms.median, at - 0.45 * width, at + 0.45 * width, color="black", lw=1.2
            )
    strategy_legend(ax, lines)
    rank_ticks(ax, lines)
    ax.set_title("Compute (solid), exposed communication (hatched), the whole step (line)")
    ax.set_ylabel("ms")


def _save(figure: Figure, stem: Path, text: str) -> Iterator[Path]:
    figure.tight_layout(rect=(0, 0.04, 1, 1))
    figure.text(0.01, 0.005, text, fontsize=6.5, color="#444444", wrap=True)
    for kind in ("png", "svg"):
        path = stem.with_suffix(f".{kind}")
        metadata = {"Date": None} if kind == "svg" else None
        figure.savefig(path, metadata=metadata, bbox_inches="tight")
        yield path
