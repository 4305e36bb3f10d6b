"""The figures of a run, each as PNG and SVG.

Made from what is in the results folder alone, so they can be drawn again a year later. A
figure is one page of its panels; a run of many workloads has several pages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pandas
from matplotlib.axes import Axes

from spbench.analysis.compare import MARGIN
from spbench.analysis.compare_strategies import Line
from spbench.analysis.intervals import LEAST_LAUNCHES
from spbench.report.plots.figure import PANELS, Sheet, save
from spbench.report.plots.forest import compared, labels, ratios
from spbench.report.plots.iterations_plot import OUTLIER, cases_by_panel, launch_rows
from spbench.report.plots.panels import memory, sent_bytes, step_split, throughput
from spbench.results.iterations import has_samples, read_traces
from spbench.text import counted

Drawing = Callable[[Axes, Sequence[Line]], None]
DRAWINGS: dict[str, tuple[Drawing, str]] = {
    "throughput": (throughput, "Throughput"),
    "memory": (memory, "Peak memory of a rank"),
    "sent_bytes": (
        sent_bytes,
        "Sent by one rank in a step: forward, backward, gradients (dark to light); "
        "predicted (lines)",
    ),
    "step_split": (
        step_split,
        "Compute (solid), exposed communication (hatched), the whole step (line)",
    ),
}
SPREAD = {
    1: "one launch: no spread between launches",
    2: "whiskers: range of two launches",
    3: "whiskers: 95 % intervals of the launches",
}
"""By the number of launches that count; 3 stands for more."""
MIXED = "whiskers: 95 % intervals; of two launches their range"
SHARE_BACKEND = "fake"
SHARE_DRAWINGS = ("memory", "step_split")


@dataclass(frozen=True, kw_only=True)
class Page:
    """Sheets by the names of their files, and remarks on panels that are not drawn."""

    sheets: Mapping[str, Sheet]
    remarks: Sequence[str]


def page_of(lines: Sequence[Line], frame: pandas.DataFrame, run: Path, number: int = 1) -> Page:
    """The figures that the run has data for. Raises ValueError if it has fewer pages."""
    panels: dict[str, list[str]] = {}
    for name in DRAWINGS:
        # A share has no step and sends nothing: it has no place in those figures.
        drawn = [line for line in lines if name in SHARE_DRAWINGS or line.kind == "measured"]
        panels[name] = list(dict.fromkeys(line.panel for line in drawn))
    panels["ratios"] = list(dict.fromkeys(line.panel for line in lines if compared(line)))
    cases = cases_by_panel(frame) if has_samples(run) else {}
    panels["launches"] = list(cases)
    most = max(math.ceil(len(titles) / PANELS) for titles in panels.values())
    if number > most:
        raise ValueError(f"--page {number}: the last page is {most}")
    shown = {name: titles[PANELS * (number - 1) :][:PANELS] for name, titles in panels.items()}
    suffix = f"-page{number}" if number > 1 else ""
    about = caption(frame, lines)
    sheets = {
        name + suffix: _sheet(name, [line for line in lines if line.panel in shown[name]], about)
        for name in DRAWINGS
        if shown[name]
    }
    remarks = [_left_out(panels, number, most)] if most > 1 else []
    if shown["ratios"]:
        here = [line for line in lines if compared(line) and line.panel in shown["ratios"]]
        sheets["ratios" + suffix] = _ratios(here, about)
    if shown["launches"]:
        found = {title: cases[title] for title in shown["launches"]}
        sheet, lost = _launches(found, run, about)
        sheets["launches" + suffix] = sheet
        remarks += lost
    return Page(sheets=sheets, remarks=remarks)


def _sheet(name: str, lines: Sequence[Line], about: str) -> Sheet:
    drawing, heading = DRAWINGS[name]
    return Sheet(
        heading=heading,
        panels={title: _into(drawing, these) for title, these in _by_panel(lines).items()},
        strategies=list(dict.fromkeys(line.strategy for line in lines)),
        caption=about,
    )


def _by_panel(lines: Sequence[Line]) -> dict[str, list[Line]]:
    found: dict[str, list[Line]] = {}
    for line in lines:
        found.setdefault(line.panel, []).append(line)
    return found


def _ratios(lines: Sequence[Line], about: str) -> Sheet:
    """The forest plot of lines that have a ratio."""
    panels = _by_panel(lines)
    return Sheet(
        heading=f"Against {lines[0].reference}: {_ratios_of(lines)}",
        panels={title: partial(ratios, lines=these) for title, these in panels.items()},
        caption=f"{about} · band: within {MARGIN:.0%}; hollow: no significant difference",
        label_width=0.3 + 0.066 * max(map(len, labels(lines))),
        rows=max(map(len, panels.values())) + 1,
    )


def _ratios_of(lines: Sequence[Line]) -> str:
    """Times of launches that ran in one round have a ratio of their own."""
    paired = {line.to_reference.paired for line in lines if line.to_reference is not None}
    if paired == {True}:
        return "ratios of the launches of each round"
    return "ratios of mean step times" if paired == {False} else "ratios of rounds, or of means"


def _into(drawing: Drawing, lines: Sequence[Line]) -> Callable[[Axes], None]:
    return lambda ax: drawing(ax, lines)


def _launches(
    panels: Mapping[str, pandas.DataFrame], run: Path, about: str
) -> tuple[Sheet, list[str]]:
    drawn = pandas.concat(panels.values())
    traces = read_traces(run, set(drawn["case"]))
    lost = []
    if traces.torn:
        lost.append(f"samples are torn or damaged in {counted(traces.torn, 'place')}")
    if traces.damaged:
        lost.append(f"{counted(traces.damaged, 'line')} of the samples left out: not a sample")
    return Sheet(
        heading="Every iteration against its case's step time",
        panels={
            title: partial(launch_rows, frame=frame, traces=traces)
            for title, frame in panels.items()
        },
        caption=f"{about} · slowest rank; lines: step times of launches; "
        f"rings: more than {OUTLIER:.0f} scaled MADs from the launch's median",
        label_width=0.3 + 0.066 * drawn["strategy"].str.len().max(),
        end_width=0.4,
        rows=max(frame["strategy"].nunique() for frame in panels.values()),
    ), lost


def _left_out(panels: Mapping[str, Sequence[str]], number: int, most: int) -> str:
    """Which panels are drawn, and how to see others."""
    drawn = []
    for name, these in (("panels", next(iter(panels.values()))), ("launches", panels["launches"])):
        last = min(PANELS * number, len(these))
        if last > PANELS * (number - 1):
            of = "panels" if name == "panels" else f"panels of {name}"
            drawn.append(f"{of} {PANELS * (number - 1) + 1} to {last} of {len(these)}")
    return (
        f"drawn are {', '.join(drawn)}; others with --page (1 to {most}), "
        "or choose with --workload, --strategy, --gpus"
    )


def draw_all(page: Page, folder: Path) -> Iterator[Path]:
    """Writes every figure of the page; yields the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, sheet in page.sheets.items():
        yield from save(sheet, folder / name)


def caption(frame: pandas.DataFrame, lines: Sequence[Line]) -> str:
    """Run, device, torch and dtype of what is drawn, and what its whiskers are."""
    first = frame.iloc[0]

    def each(name: str) -> str:
        return ", ".join(value for value in frame[name].unique() if value)

    known = {min(line.launches, LEAST_LAUNCHES) for line in lines if line.launches}
    spread = MIXED if {2, LEAST_LAUNCHES} <= known else SPREAD[max(known, default=1)]
    backend = each("backend").replace(SHARE_BACKEND, "nothing sent")
    where = [each("gpu") or first["device"], backend, f"torch {each('torch')}"]
    said = [f"run {first['run_id']}", *where, each("dtype"), each("mode"), spread]
    return " · ".join(part for part in said if part)
