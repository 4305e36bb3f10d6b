"""The figures of a run, made of its comparison and its samples.

Made from what is in the results folder alone, so they can be drawn again a year later. A
figure is one page of its panels; a run of many workloads has several pages.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas

from spbench.analysis.compare_strategies import Line
from spbench.report.plots import capacity_plot
from spbench.report.plots.curve_panels import PARETO, curve_panels
from spbench.report.plots.curves import curve_sheet
from spbench.report.plots.figure import PANELS, Sheet
from spbench.report.plots.iterations_plot import launch_sheet, measured_cases
from spbench.report.plots.kinds import (
    DRAWINGS,
    bar_sheet,
    caption,
    known,
    overview_sheet,
    ratio_sheet,
    usual,
)
from spbench.report.plots.panels import compared
from spbench.report.plots.points import Asked, label_of
from spbench.report.plots.winners import winners_panels, winners_sheet
from spbench.results.run_json import read_run
from spbench.results.samples import has_samples
from spbench.text import grouped

HEADING = "Throughput over ranks, and the ideal of the best (dotted)"
PARETO_HEADING = "Throughput of a rank against its memory; numbers: ranks along the first line"
Made = tuple[Mapping[str, Any], Callable[[Mapping[str, Any], str], Sheet]]
"""What is drawn in each panel of a figure, by title; and what makes a sheet of some of them."""


@dataclass(frozen=True, kw_only=True)
class Page:
    """Sheets by the names of their files, and remarks on panels that are not drawn."""

    sheets: Mapping[str, Sheet]
    remarks: Sequence[str]


def page_of(
    lines: Sequence[Line],
    frame: pandas.DataFrame,
    run: Path,
    number: int = 1,
    kinds: Sequence[str] = (),
    asked: Asked | None = None,
    capacities: pandas.DataFrame | None = None,
) -> Page:
    """The figures of ``kinds``, or those that the run has most to say with.

    ``capacities``: lines of capacity.csv that lie beside the run.

    Raises ValueError if it has fewer pages, and for a kind, metric, x or facet that is not known.
    """
    lines = _with_limits(lines, frame, run)
    wanted = [known(kind) for kind in kinds]
    if asked is not None and not {"scaling"} & {*wanted}:
        if wanted:
            raise ValueError("--metric, --x and --facet are of the kind scaling")
        wanted = ["scaling"]
    made = _made(lines, frame, wanted or usual(lines), asked or Asked())
    if capacities is not None and len(capacities) and (not wanted or "capacity" in wanted):
        made["capacity"] = _capacity(capacities)
    launches = measured_cases(frame if has_samples(run) else frame.head(0))
    if not wanted or "launches" in wanted:
        made["launches"] = dict.fromkeys(launches["panel"]), None  # type: ignore[assignment]
    if not any(panels for panels, _ in made.values()):
        raise ValueError(_nothing(lines, wanted))
    made, remarks = _paged(made, number)
    about, sheets = caption(frame), {}
    real = frame[frame["kind"] != "projected"]
    measured = caption(real) if len(real) else about
    for name, (shown, sheet_of) in made.items():
        if shown and name == "launches":
            rows = launches[launches["panel"].isin(shown)]
            sheets[name], lost = launch_sheet(rows, run, measured)
            remarks += lost
        elif shown:
            sheet = sheet_of(shown, about)
            sheets[name] = sheet if sheet.has_projected else sheet_of(shown, measured)
    return Page(sheets={_name(kind, number): x for kind, x in sheets.items()}, remarks=remarks)


def capacity_page(capacities: pandas.DataFrame, number: int = 1) -> Page:
    """The figure of a folder that has capacities alone. Raises ValueError as ``page_of`` does."""
    made, remarks = _paged({"capacity": _capacity(capacities)}, number)
    shown, sheet_of = made["capacity"]
    return Page(sheets={_name("capacity", number): sheet_of(shown, "")}, remarks=remarks)


def _paged(made: Mapping[str, Made], number: int) -> tuple[dict[str, Made], list[str]]:
    """The panels of a page, and how many there are on others. Raises ValueError if there are fewer
    pages."""
    pages = max(math.ceil(len(panels) / PANELS) for panels, _ in made.values())
    if number > pages:
        raise ValueError(f"--page {number}: the last page is {pages}")
    shown: dict[str, Made] = {
        kind: (dict(list(panels.items())[PANELS * (number - 1) :][:PANELS]), sheet_of)
        for kind, (panels, sheet_of) in made.items()
    }
    return shown, [_left_out(made, number, pages)] if pages > 1 else []


def _name(kind: str, number: int) -> str:
    """The name of a figure's file."""
    return f"{kind}-page{number}" if number > 1 else kind


def _capacity(capacities: pandas.DataFrame) -> Made:
    """The figure has a caption of its own."""
    own = capacity_plot.caption(capacities), capacity_plot.HEADING
    return capacity_plot.panels(capacities), lambda panels, _: curve_sheet(panels, *own)


def _made(
    lines: Sequence[Line], frame: pandas.DataFrame, kinds: Sequence[str], asked: Asked
) -> dict[str, Made]:
    """What each figure draws, but for launches."""

    def by_panel(shown: Iterable[Line]) -> dict[str, list[Line]]:
        return grouped(shown, lambda line: line.panel)

    def curves(asked: Asked, heading: str) -> Made:
        stepping = [line for line in lines if not line.is_share]
        panels = curve_panels(stepping, frame, asked) if stepping else {}
        return panels, lambda shown, about: curve_sheet(
            {title: make() for title, make in shown.items()}, about, heading
        )

    made: dict[str, Made] = {}
    for kind in kinds:
        if kind in DRAWINGS:
            shown = [line for line in lines if line.kind in DRAWINGS[kind][2]]
            made[kind] = by_panel(shown), partial(bar_sheet, name=kind)
        elif kind == "overview":
            made[kind] = dict([*by_panel(lines).items()][:1]), overview_sheet
        elif kind == "ratios":
            made[kind] = by_panel(filter(compared, lines)), ratio_sheet
        elif kind == "winners":
            made[kind] = winners_panels(lines, frame), winners_sheet
        elif kind == "pareto":
            made[kind] = curves(PARETO, PARETO_HEADING)
        elif kind == "scaling":
            name, heading = "scaling", HEADING
            if asked != Asked():
                y, x = label_of(asked.metric), label_of(asked.x)
                heading = f"{y[0].upper()}{y[1:]}, over {x}"
                parts = [asked.metric, "over", asked.x]
                name = "-".join(parts + ["by", asked.facet] * (asked.facet != "workload"))
            made[name] = curves(asked, heading)
    return made


def _nothing(lines: Sequence[Line], kinds: Sequence[str]) -> str:
    """Why nothing can be drawn of these kinds; none: of whatever the run has."""
    if not lines:
        return "there is no row to draw; choose others, or measure some with 'spbench run'"
    drawn = f"nothing to draw for {', '.join(kinds)}" if kinds else "nothing to draw"
    if all(line.is_share for line in lines):
        return (
            f"the run has {drawn}: its rows are shares of one GPU, which are no steps and are not "
            "ranked; use memory, step_split or launches"
        )
    return f"the run has {drawn}"


def _with_limits(lines: Sequence[Line], frame: pandas.DataFrame, run: Path) -> list[Line]:
    """The lines with the memory of the GPUs that they were measured on."""
    gpus = read_run(run).get("gpus") or []
    sizes = [
        gpu["memory_bytes"] for gpu in gpus if isinstance(gpu, dict) and gpu.get("memory_bytes")
    ]
    if not sizes or set(frame["device"]) != {"cuda"}:
        return list(lines)
    return [
        replace(line, memory_limit_bytes=line.memory_limit_bytes or min(sizes)) for line in lines
    ]


def _left_out(made: Mapping[str, Made], number: int, pages: int) -> str:
    """The panels that are drawn, and how to see others."""
    drawn = []
    counts = {name: len(panels) for name, (panels, _) in made.items()}
    most = max(count for name, count in counts.items() if name != "launches" or len(counts) == 1)
    for of, count in (("panels", most), ("panels of launches", counts.get("launches", 0))):
        last = min(PANELS * number, count)
        if last > PANELS * (number - 1):
            drawn.append(f"{of} {PANELS * (number - 1) + 1} to {last} of {count}")
    return (
        f"drawn are {', '.join(drawn)}; others with --page (1 to {pages}), "
        "or choose with --workload, --strategy, --gpus"
    )
