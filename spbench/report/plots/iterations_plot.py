"""Every iteration of every launch in order of time, so that drift and outliers are seen.

A panel holds the cases of one workload and number of ranks, a row of dots each. A dot is an
iteration of the slowest rank, as its distance from the case's step time in per cent; all rows of a
panel have the same scale. Launches stand side by side, those of one round above each other. A
ring marks an iteration more than 5 scaled MADs from its launch's median. No iteration is left out:
one beyond the scale stands at the edge of its row, with its distance at the row's end.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pandas
from matplotlib.axes import Axes
from numpy.typing import NDArray

from spbench.analysis.comparable import in_panels
from spbench.analysis.launches import launches_by, launches_side_by_side
from spbench.report import units
from spbench.report.plots.figure import Sheet
from spbench.report.plots.looks import colour
from spbench.results.record import Record
from spbench.results.runs_csv import records_of
from spbench.results.samples import read_samples, steps_by_row
from spbench.text import counted

MAD_OF_NORMAL = 1.4826
"""Standard deviations in a MAD where the distribution is normal."""
OUTLIER = 5.0
LEAST_SCALE = 0.005
ROUNDING = 1e-5
"""Relative error of samples, which are kept with six digits."""
HALF_ROW = 0.42

Figures = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class CaseTimes:
    """The iterations of one strategy's launches in a panel."""

    strategy: str
    launches: Sequence[Record]
    iterations_ms: Sequence[Figures]
    """Times of the slowest rank, for each launch; empty without samples."""
    mean_ms: float | None
    """The case's step time, or what one GPU's share computes."""


def measured_cases(frame: pandas.DataFrame) -> pandas.DataFrame:
    """The launches in order of their panels, whose titles name the ranks, too; a case of which no
    launch was measured has no row."""
    case = ["panel_number", "world_size", "strategy"]
    shown = in_panels(frame)
    is_ok = shown["status"] == "ok"
    shown = shown[is_ok.groupby([shown[name] for name in case]).transform("any")]
    shown = shown.sort_values([*case[:2], "launch"], kind="stable")
    titles = zip(shown["panel"], shown["world_size"], strict=True)
    return shown.assign(panel=[f"{panel}\n{counted(ranks, 'rank')}" for panel, ranks in titles])


def times_by_panel(
    shown: pandas.DataFrame, samples: pandas.DataFrame
) -> dict[str, list[CaseTimes]]:
    """The cases of each panel by its title, both in order; ``shown``: of ``measured_cases``."""
    case = ["panel", "strategy"]
    launches = launches_by(shown, case, counts=launches_side_by_side(shown, case))
    steps = steps_by_row(shown, samples)
    rows: dict[tuple[str, str], dict[Hashable, Record]] = {}
    for row, panel, record in zip(shown.index, shown["panel"], records_of(shown), strict=True):
        rows.setdefault((panel, record.strategy), {})[row] = record
    panels: dict[str, list[CaseTimes]] = {}
    for (panel, strategy), these in rows.items():
        times = CaseTimes(
            strategy=strategy,
            launches=list(these.values()),
            iterations_ms=[np.array(steps.get(row, [])) for row in these],
            mean_ms=launches[panel, strategy].that_count.mean_ms,
        )
        panels.setdefault(panel, []).append(times)
    return panels


def launch_sheet(rows: pandas.DataFrame, run: Path, about: str) -> tuple[Sheet, list[str]]:
    """The figure of iterations, and sentences about samples that are lost."""
    samples = read_samples(run, set(rows["case"]))
    lost = []
    if torn := samples.attrs["torn"]:
        lost.append(f"samples are torn or damaged in {counted(torn, 'place')}")
    if damaged := samples.attrs["damaged"]:
        lost.append(f"{counted(damaged, 'line')} of the samples left out: not a sample")
    panels = times_by_panel(rows, samples)
    is_share = bool((rows["kind"] == "one_gpu_share").all())
    what = "compute share: no step, nothing is sent" if is_share else "step time"
    return Sheet(
        heading=f"Every iteration against its case's {what}",
        panels={title: partial(launch_rows, cases=cases) for title, cases in panels.items()},
        caption=f"{about} · slowest rank; lines: step times of launches; "
        f"rings: more than {OUTLIER:.0f} scaled MADs from the launch's median",
        label_width=0.3 + 0.066 * max(map(len, rows["strategy"])),
        end_width=0.4,
        rows=max(map(len, panels.values())),
    ), lost


def outliers(ms: Figures) -> NDArray[np.bool_]:
    """Whether each time is too far from the launch's median to belong to its spread."""
    median = np.median(ms)
    mad = max(float(np.median(np.abs(ms - median))) * MAD_OF_NORMAL, ROUNDING * float(median))
    return np.asarray(np.abs(ms - median) > OUTLIER * mad)


def launch_rows(ax: Axes, cases: Sequence[CaseTimes]) -> None:
    """A row of dots for each case, with a line at the step time of each launch."""
    scale = _scale(cases)
    slots = sorted({record.launch for case in cases for record in case.launches})
    marks = [
        mark for row, case in enumerate(cases) for mark in _draw_row(ax, case, -row, slots, scale)
    ]
    if marks:
        rings, levels = zip(*marks, strict=True)
        x, y = np.hstack(rings)
        ax.scatter(x, y, s=26, facecolors="none", edgecolors="black", lw=0.8, zorder=3)
        at, height = np.array(levels).T
        ax.hlines(height, at + 0.06, at + 0.94, color="#555555", lw=0.8, zorder=1)
    _label(ax, cases, slots, scale)


def _draw_row(
    ax: Axes, case: CaseTimes, row: int, slots: Sequence[int], scale: float
) -> list[tuple[Figures, tuple[int, float]]]:
    """Draws a case; returns the places of each launch's outliers, and that of its step time."""
    ax.axhline(row, color="#DDDDDD", lw=0.6, zorder=0)
    dots, aways, marks = [], [], []
    for record, ms in zip(case.launches, case.iterations_ms, strict=True):
        slot = slots.index(record.launch)
        if not (len(ms) and record.compared_ms and case.mean_ms):
            why = record.status if record.status != "ok" else "no samples"
            ax.text(slot + 0.5, row, why, color="grey", size=7, ha="center", va="center")
            continue
        away = ms / case.mean_ms - 1
        if record.noisy:
            ax.text(slot + 0.5, row + HALF_ROW, "noisy", color="grey", size=6, ha="center")
        x = slot + 0.06 + 0.88 * (np.arange(len(ms)) + 0.5) / len(ms)
        dots.append(np.array([x, row + HALF_ROW * np.clip(away / scale, -1, 1)]))
        aways.append(away)
        level = row + HALF_ROW * (record.compared_ms / case.mean_ms - 1) / scale
        marks.append((dots[-1][:, outliers(ms)], (slot, level)))
    if dots:
        x, y = np.hstack(dots)
        ax.scatter(x, y, s=7, color=colour(case.strategy), lw=0, zorder=2)
        furthest = max(np.hstack(aways), key=abs)
        if abs(furthest) > scale:
            ax.text(len(slots) * 1.012, row, f"{furthest:+.0%}", size=6.5, va="center")
    return marks


def _scale(cases: Sequence[CaseTimes]) -> float:
    """Half the height of a row: it reaches every dot that is not an outlier."""
    near = [
        float(np.max(np.abs(ms[~outliers(ms)] / case.mean_ms - 1)))
        for case in cases
        for ms in case.iterations_ms
        if len(ms) and case.mean_ms
    ]
    return max(LEAST_SCALE, 1.1 * max(near, default=0.0))


def _label(ax: Axes, cases: Sequence[CaseTimes], slots: Sequence[int], scale: float) -> None:
    """Labels rows and launches, with lines between launches, and what the height of a row means."""
    rows, is_close = len(cases), len(cases) > 5
    behind = ", " if is_close else "\n"
    ax.set_yticks(
        [-float(row) for row in range(rows)],
        [f"{case.strategy}{behind}{units.milliseconds(case.mean_ms)} ms" for case in cases],
        fontsize=7 if is_close else 8,
    )
    ax.set_ylim(0.55 - rows, 0.55)
    ax.vlines(range(1, len(slots)), -rows, 1, color="#BBBBBB", lw=0.6, zorder=0)
    ax.set_xlim(0, len(slots))
    ax.set_xticks([slot + 0.5 for slot in range(len(slots))], [str(slot + 1) for slot in slots])
    ax.tick_params(length=0)
    ax.set_xlabel("launch")
    ax.annotate(
        f"height of a row: ±{units.percent(scale)}",
        (1, 0),
        xytext=(0, -18),
        xycoords="axes fraction",
        textcoords="offset points",
        size=6.5,
        ha="right",
        va="top",
    )
