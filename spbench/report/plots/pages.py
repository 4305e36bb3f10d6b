"""The figures of a run: which kinds it has most to say with, and which panels stand on a page."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spbench.analysis.compare_strategies import Line
from spbench.report.plots.figure import PANELS, Sheet
from spbench.report.plots.frame import Asked, Run, unknown
from spbench.report.plots.kinds import KINDS

USUAL = ("memory", "sent_bytes", "step_split", "ratios", "capacity", "launches")
"""Figures that are drawn unasked, besides the overview of one panel, and throughput or scaling."""


@dataclass(frozen=True, kw_only=True)
class Page:
    """Sheets by the names of their files, and remarks on panels that are not drawn."""

    sheets: Mapping[str, Sheet]
    remarks: Sequence[str]


def page_of(run: Run, number: int = 1, kinds: Sequence[str] = ()) -> Page:
    """The figures of ``kinds``, or those that the run has most to say with.

    A figure is one page of its panels; a run of many workloads has several pages. Raises
    ValueError if it has fewer, and for a kind, metric, x or facet that is not known.
    """
    for kind in kinds:
        if kind not in KINDS:
            raise ValueError(unknown(f"--kind {kind}: no such figure.", kind, [*KINDS]))
    if run.asked != Asked() and "scaling" not in kinds:
        if kinds:
            raise ValueError("--metric, --x and --facet are of the kind scaling")
        kinds = ["scaling"]
    panels = {kind: KINDS[kind].panels(run) for kind in kinds or usual(run.lines)}
    if not any(panels.values()):
        raise ValueError(_nothing(run.lines, kinds))
    pages = max(math.ceil(len(of_kind) / PANELS) for of_kind in panels.values())
    if number > pages:
        raise ValueError(f"--page {number}: the last page is {pages}")
    remarks = [_left_out(panels, number, pages)] if pages > 1 else []
    sheets: dict[str, Sheet] = {}
    for kind, of_kind in panels.items():
        shown = dict([*of_kind.items()][PANELS * (number - 1) : PANELS * number])
        if shown:
            sheet = KINDS[kind].sheet(shown, run)
            remarks += sheet.remarks
            sheets[_name(kind, run.asked, number)] = sheet
    return Page(sheets=sheets, remarks=remarks)


def usual(lines: Sequence[Line]) -> list[str]:
    """An overview where one panel is all; curves in place of bars where ranks grow."""
    panels = {line.panel for line in lines}
    grows = len({(line.panel, line.ranks) for line in lines}) > len(panels)
    first = ["overview"] if len(panels) == 1 else []
    return [*first, "scaling" if grows else "throughput", *USUAL]


def _name(kind: str, asked: Asked, number: int) -> str:
    """The name of a figure's file."""
    if kind == "scaling" and asked != Asked():
        by = "" if asked.facet == "workload" else f"-by-{asked.facet}"
        kind = f"{asked.metric}-over-{asked.x}{by}"
    return f"{kind}-page{number}" if number > 1 else kind


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


def _left_out(panels: Mapping[str, Mapping[str, Any]], number: int, pages: int) -> str:
    """The panels that are drawn, and how to see others."""
    launches = len(panels.get("launches", ()))
    most = max((len(x) for kind, x in panels.items() if kind != "launches"), default=launches)
    drawn = []
    for of, count in (("panels", most), ("panels of launches", launches)):
        last = min(PANELS * number, count)
        if last > PANELS * (number - 1):
            drawn.append(f"{of} {PANELS * (number - 1) + 1} to {last} of {count}")
    return (
        f"drawn are {', '.join(drawn)}; others with --page (1 to {pages}), "
        "or choose with --workload, --strategy, --gpus"
    )
