"""The figures of a run, made of its comparison and its samples.

Made from what is in the results folder alone, so they can be drawn again a year later. A
figure is one page of its panels; a run of many workloads has several pages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pandas

from spbench.analysis.compare import MARGIN
from spbench.analysis.compare_strategies import Line
from spbench.report.plots.figure import PANELS, Sheet
from spbench.report.plots.iterations_plot import (
    OUTLIER,
    launch_rows,
    measured_cases,
    times_by_panel,
)
from spbench.report.plots.panels import (
    compared,
    label,
    memory,
    ratios,
    sent_bytes,
    step_split,
    throughput,
)
from spbench.results.iterations import has_samples, read_samples
from spbench.text import counted

DRAWINGS: dict[str, tuple[Callable[..., None], str]] = {
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
"""Functions that draw the cases of a panel into axes, and the headings of their figures."""
SHARE_BACKEND = "fake"
SHARE_DRAWINGS = ("memory", "step_split")
"""Figures of a share of one GPU, which has no step and sends nothing."""


@dataclass(frozen=True, kw_only=True)
class Page:
    """Sheets by the names of their files, and remarks on panels that are not drawn."""

    sheets: Mapping[str, Sheet]
    remarks: Sequence[str]


def page_of(lines: Sequence[Line], frame: pandas.DataFrame, run: Path, number: int = 1) -> Page:
    """The figures that the run has data for. Raises ValueError if it has fewer pages."""
    drawn = {
        name: [line for line in lines if name in SHARE_DRAWINGS or line.kind == "measured"]
        for name in DRAWINGS
    }
    drawn["ratios"] = [line for line in lines if compared(line)]
    panels = {name: _unique(line.panel for line in these) for name, these in drawn.items()}
    launches = measured_cases(frame if has_samples(run) else frame.head(0))
    panels["launches"] = _unique(launches["panel"])
    pages = max(math.ceil(len(titles) / PANELS) for titles in panels.values())
    if number > pages:
        raise ValueError(f"--page {number}: the last page is {pages}")
    shown = {name: titles[PANELS * (number - 1) :][:PANELS] for name, titles in panels.items()}
    about = caption(frame)
    sheets = {}
    for name, these in drawn.items():
        by_panel = {title: [x for x in these if x.panel == title] for title in shown[name]}
        if by_panel:
            sheets[name] = (_ratios if name == "ratios" else partial(_sheet, name))(by_panel, about)
    remarks = [_left_out(panels, number, pages)] if pages > 1 else []
    if shown["launches"]:
        rows = launches[launches["panel"].isin(shown["launches"])]
        sheets["launches"], lost = _launches(rows, run, about)
        remarks += lost
    suffix = f"-page{number}" if number > 1 else ""
    return Page(sheets={name + suffix: sheet for name, sheet in sheets.items()}, remarks=remarks)


def _unique(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _sheet(name: str, panels: Mapping[str, Sequence[Line]], about: str) -> Sheet:
    drawing, heading = DRAWINGS[name]
    shown = [line for lines in panels.values() for line in lines]
    return Sheet(
        heading=heading,
        panels={title: partial(drawing, lines=lines) for title, lines in panels.items()},
        strategies=_unique(line.strategy for line in shown),
        caption=f"{about} · {whiskers(shown)}" if name == "throughput" else about,
    )


def _ratios(panels: Mapping[str, Sequence[Line]], about: str) -> Sheet:
    """The forest plot of lines that have a ratio."""
    lines = [line for lines in panels.values() for line in lines]
    are_open = all(not line.to_reference or line.to_reference.low is None for line in lines)
    spread = "" if are_open else " · lines: 95 % intervals"
    return Sheet(
        heading=f"Against {lines[0].reference}: {_kind_of_ratios(lines)}",
        panels={title: partial(ratios, lines=lines) for title, lines in panels.items()},
        caption=f"{about}{spread} · band: within {MARGIN:.0%}; hollow: no significant difference",
        label_width=0.3 + 0.066 * max(len(label(line)) for line in lines),
        rows=max(map(len, panels.values())) + 1,
    )


def _kind_of_ratios(lines: Sequence[Line]) -> str:
    """Times of launches that ran in one round have a ratio of their own."""
    paired = {line.to_reference.paired for line in lines if line.to_reference is not None}
    if paired == {True}:
        return "ratios of the launches of each round"
    return "ratios of mean step times" if paired == {False} else "ratios of rounds, or of means"


def _launches(rows: pandas.DataFrame, run: Path, about: str) -> tuple[Sheet, list[str]]:
    """The figure of iterations, and sentences about samples that are lost."""
    samples = read_samples(run, set(rows["case"]))
    lost = []
    if torn := samples.attrs["torn"]:
        lost.append(f"samples are torn or damaged in {counted(torn, 'place')}")
    if damaged := samples.attrs["damaged"]:
        lost.append(f"{counted(damaged, 'line')} of the samples left out: not a sample")
    panels = times_by_panel(rows, samples)
    return Sheet(
        heading="Every iteration against its case's step time",
        panels={title: partial(launch_rows, cases=cases) for title, cases in panels.items()},
        caption=f"{about} · slowest rank; lines: step times of launches; "
        f"rings: more than {OUTLIER:.0f} scaled MADs from the launch's median",
        label_width=0.3 + 0.066 * max(map(len, rows["strategy"])),
        end_width=0.4,
        rows=max(map(len, panels.values())),
    ), lost


def _left_out(panels: Mapping[str, Sequence[str]], number: int, pages: int) -> str:
    """The panels that are drawn, and how to see others."""
    drawn = []
    for name, these in (("panels", next(iter(panels.values()))), ("launches", panels["launches"])):
        last = min(PANELS * number, len(these))
        if last > PANELS * (number - 1):
            of = "panels" if name == "panels" else f"panels of {name}"
            drawn.append(f"{of} {PANELS * (number - 1) + 1} to {last} of {len(these)}")
    return (
        f"drawn are {', '.join(drawn)}; others with --page (1 to {pages}), "
        "or choose with --workload, --strategy, --gpus"
    )


def whiskers(lines: Sequence[Line]) -> str:
    """Meaning of the whiskers, which cases of one launch lack."""
    if max((line.launches for line in lines), default=0) < 2:
        return "one launch: no confidence interval"
    return "whiskers: 95 % intervals of the launches; of two launches their range"


def caption(frame: pandas.DataFrame) -> str:
    """Run, device, torch and dtype of what is drawn, and whether it was quick or noisy."""
    first = frame.iloc[0]

    def each(name: str) -> str:
        return ", ".join(value for value in frame[name].unique() if value)

    backend = each("backend").replace(SHARE_BACKEND, "nothing sent")
    machine = [each("gpu") or first["device"], backend, f"torch {each('torch')}"]
    noisy = int((frame["noisy"] != "").sum())
    doubts = [f"{noisy} of {counted(len(frame), 'launch')} noisy"] if noisy else []
    doubts += ["quick"] if (frame["effort"] == "quick").any() else []
    parts = [f"run {first['run_id']}", *machine, each("dtype"), each("mode"), *doubts]
    return " · ".join(filter(None, parts))
