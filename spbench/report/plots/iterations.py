"""Every iteration of every launch in order of time, so that drift and outliers are seen.

A panel holds the cases of one workload and number of ranks, a row of dots each. A dot is an
iteration of the slowest rank, as its distance from the case's step time in per cent; all rows of a
panel have the same scale. Launches stand side by side, those of one round above each other, each
with a line at its step time. A ring marks an iteration more than 5 scaled MADs from its launch's
median. No iteration is left out: one beyond the scale stands at the edge of its row, with its
distance at the row's end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas

from spbench.analysis.launches import launches_by, launches_side_by_side
from spbench.analysis.rows import LaunchRows, rows_of
from spbench.report import units
from spbench.report.plots.caption import sheet_about
from spbench.report.plots.figure import Mark, Sheet
from spbench.report.plots.style import LETTER, SMALL, colour
from spbench.results.samples import has_samples, read_samples, steps_by_row
from spbench.text import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from spbench.report.plots.frame import Run

    Figures = NDArray[np.float64]

MAD_OF_NORMAL = 1.4826
"""Standard deviations in a MAD where the distribution is normal."""
OUTLIER = 5.0
LEAST_SCALE = 0.005
ROUNDING = 1e-5
"""Relative error of samples, which are kept with six digits."""
HALF_ROW = 0.42


@dataclass(frozen=True, kw_only=True)
class CaseTimes:
    """The iterations of one strategy's launches in a panel."""

    strategy: str
    launches: LaunchRows
    iterations_ms: Sequence[Figures]
    """Times of the slowest rank, for each launch; empty without samples."""
    mean_ms: float | None
    """The case's step time, or what one GPU's share computes."""


def launch_panels(run: Run) -> dict[str, pandas.DataFrame]:
    """The launches of each panel by its title, which names the ranks, too, where the run has
    samples; a case of which no launch was measured has no row."""
    if not has_samples(run.folder):
        return {}
    launches, case = run.in_panels, ["panel_number", "world_size", "strategy"]
    is_ok = launches["status"] == "ok"
    is_measured = is_ok.groupby([launches[name] for name in case]).transform("any")
    ordered = launches[is_measured].sort_values([*case[:2], "launch"], kind="stable")
    return {
        f"{rows['panel'].iloc[0]}\n{counted(int(rows['world_size'].iloc[0]), 'rank')}": rows
        for _, rows in ordered.groupby(case[:2], sort=False)
    }


def case_times(launches: pandas.DataFrame, samples: pandas.DataFrame) -> list[CaseTimes]:
    """The cases of one panel, in the order of their first launches."""
    case = ["panel", "strategy"]
    of_case = launches_by(launches, case, counts=launches_side_by_side(launches, case))
    steps, panel = steps_by_row(launches, samples), launches["panel"].iloc[0]
    columns, labels = rows_of(launches).columns, launches.index
    places = launches.groupby("strategy", sort=False).indices
    return [
        CaseTimes(
            strategy=str(strategy),
            launches=LaunchRows(columns, [*map(int, numbers)]),
            iterations_ms=[np.array(steps.get(row, [])) for row in labels[numbers]],
            mean_ms=of_case[panel, strategy].that_count.mean_ms,
        )
        for strategy, numbers in places.items()
    ]


def launch_sheet(panels: Mapping[str, pandas.DataFrame], run: Run) -> Sheet:
    """The figure of iterations; its remarks are about samples that are lost."""
    launches = pandas.concat(panels.values())
    samples = read_samples(run.folder, set(launches["case"]))
    lost = []
    if torn := samples.attrs["torn"]:
        lost.append(f"samples are torn or damaged in {counted(torn, 'place')}")
    if damaged := samples.attrs["damaged"]:
        lost.append(f"{counted(damaged, 'line')} of the samples left out: not a sample")
    is_share = bool((launches["kind"] == "one_gpu_share").all())
    what = "compute share: no step, nothing is sent" if is_share else "step time"
    return sheet_about(
        run,
        f"Every iteration against its case's {what}",
        {title: Iterations(cases=case_times(rows, samples)) for title, rows in panels.items()},
        notes=[
            "slowest rank; lines: step times of launches; "
            f"rings: more than {OUTLIER:.0f} scaled MADs from the launch's median"
        ],
        remarks=lost,
    )


def outliers(ms: Figures) -> NDArray[np.bool_]:
    """Whether each time is too far from the launch's median to belong to its spread."""
    median = np.median(ms)
    mad = max(float(np.median(np.abs(ms - median))) * MAD_OF_NORMAL, ROUNDING * float(median))
    return np.asarray(np.abs(ms - median) > OUTLIER * mad)


@dataclass(frozen=True, kw_only=True)
class Iterations(Mark):
    """A row of dots for each case, with a line at the step time of each launch."""

    cases: Sequence[CaseTimes]

    @property
    def left(self) -> float:
        return 0.3 + LETTER * max(len(case.strategy) for case in self.cases)

    @property
    def right(self) -> float:
        return 0.4

    @property
    def rows(self) -> int:
        return len(self.cases)

    def draw(self, ax: Axes) -> None:
        scale = self._scale()
        slots = sorted({launch for case in self.cases for launch in case.launches["launch"]})
        rings, levels = [], []
        for row, case in enumerate(self.cases):
            for ring, level in _draw_row(ax, case, -row, slots, scale):
                rings.append(ring)
                levels.append(level)
        if rings:
            x, y = np.hstack(rings)
            ax.scatter(x, y, s=26, facecolors="none", edgecolors="black", lw=0.8, zorder=3)
            at, height = np.array(levels).T
            ax.hlines(height, at + 0.06, at + 0.94, color="#555555", lw=0.8, zorder=1)
        self._label(ax, slots, scale)

    def _scale(self) -> float:
        """Half the height of a row: it reaches every dot that is not an outlier."""
        near = [
            float(np.max(np.abs(ms[~outliers(ms)] / case.mean_ms - 1)))
            for case in self.cases
            for ms in case.iterations_ms
            if len(ms) and case.mean_ms
        ]
        return max(LEAST_SCALE, 1.1 * max(near, default=0.0))

    def _label(self, ax: Axes, slots: Sequence[int], scale: float) -> None:
        """Rows and launches, with lines between launches, and what the height of a row means."""
        rows, is_close = len(self.cases), len(self.cases) > 5
        behind = ", " if is_close else "\n"
        ax.set_yticks(
            [-float(row) for row in range(rows)],
            [f"{c.strategy}{behind}{units.milliseconds(c.mean_ms)} ms" for c in self.cases],
            fontsize=7 if is_close else 8,
        )
        ax.set_ylim(0.55 - rows, 0.55)
        ax.vlines(range(1, len(slots)), -rows, 1, color="#BBBBBB", lw=0.6, zorder=0)
        ax.set_xlim(0, len(slots))
        numbers = range(1, len(slots) + 1)
        ax.set_xticks([number - 0.5 for number in numbers], [str(number) for number in numbers])
        ax.tick_params(length=0)
        ax.set_xlabel("launch")
        ax.annotate(
            f"height of a row: ±{units.percent(scale)}",
            (1, 0),
            xytext=(0, -18),
            xycoords="axes fraction",
            textcoords="offset points",
            size=SMALL,
            ha="right",
            va="top",
        )


def _draw_row(
    ax: Axes, case: CaseTimes, row: int, slots: Sequence[int], scale: float
) -> Iterator[tuple[Figures, tuple[int, float]]]:
    """Draws a case; yields the places of each launch's outliers, and that of its step time."""
    ax.axhline(row, color="#DDDDDD", lw=0.6, zorder=0)
    dots, aways = [], []
    for launch, ms in zip(case.launches, case.iterations_ms, strict=True):
        slot = slots.index(launch["launch"])
        if not (len(ms) and launch.compared_ms and case.mean_ms):
            why = launch["status"] if launch["status"] != "ok" else "no samples"
            ax.text(slot + 0.5, row, why, color="grey", size=7, ha="center", va="center")
            continue
        away = ms / case.mean_ms - 1
        if launch["noisy"]:
            ax.text(slot + 0.5, row + HALF_ROW, "noisy", color="grey", size=6, ha="center")
        x = slot + 0.06 + 0.88 * (np.arange(len(ms)) + 0.5) / len(ms)
        dots.append(np.array([x, row + HALF_ROW * np.clip(away / scale, -1, 1)]))
        aways.append(away)
        level = row + HALF_ROW * (launch.compared_ms / case.mean_ms - 1) / scale
        yield dots[-1][:, outliers(ms)], (slot, level)
    if dots:
        x, y = np.hstack(dots)
        ax.scatter(x, y, s=7, color=colour(case.strategy), lw=0, zorder=2)
        furthest = max(np.hstack(aways), key=abs)
        if abs(furthest) > scale:
            ax.text(len(slots) * 1.012, row, f"{furthest:+.0%}", size=SMALL, va="center")
