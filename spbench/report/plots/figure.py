"""A figure: a heading, a legend, a grid of panels, a caption; and its files: PNG, SVG, PDF.

Places are in inches and worked out before anything is drawn: labels have short figures, texts
are wrapped to their width. Measuring what was drawn would take longer than drawing it.
"""

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from spbench.report.plots.looks import LineLook, handles_of

PANELS = 12
"""The most panels on a sheet: more are too small to read, and too slow to draw."""
GRIDS = ((1, 1, 7.2, 3.1), (4, 2, 5.2, 2.7), (PANELS, 3, 4.3, 2.3))
"""A number of panels, and up to it: columns, a panel's width and height in inches, labels apart."""
HEADING, TITLE, SMALL = 12, 8.5, 6.5
LINE = 1.35 / 72
"""Inches of a line of text, for each point of its size."""
TICK_HEIGHT = 0.28
"""Inches of a tick and its figure, below a panel."""
STYLE = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": TITLE,
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "legend.borderaxespad": 0,
    "legend.borderpad": 0.2,
    "figure.dpi": 110,
    "text.hinting": "none",
    "svg.hashsalt": "spbench",
}
FORMATS: Mapping[str, Mapping[str, Any]] = {
    "png": {"pil_kwargs": {"compress_level": 3}},
    "svg": {"metadata": {"Date": None}},
    "pdf": {"metadata": {"CreationDate": None}},
}
"""Options by the ending of a file: a PNG of level 3 takes half the time of level 6."""
USUAL = ("png", "svg")


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """A heading, panels and a caption; plain data, so that another process can draw it."""

    heading: str
    panels: Mapping[str, Callable[[Axes], None]]
    """Functions that draw into axes, by the panel's title and in order."""
    caption: str
    strategies: Sequence[str] = ()
    """Strategies in the legend."""
    lines: Mapping[str, LineLook] = field(default_factory=dict)
    """Lines with markers in the legend, by name."""
    has_projected: bool = False
    """The legend says how a projected case looks."""
    label_width: float = 0.65
    """Inches of the labels left of a panel."""
    end_width: float = 0.1
    """Inches of the texts right of a panel."""
    rows: int = 0
    """Labels in a panel, each of which needs some height."""


def save_all(
    sheets: Mapping[str, Sheet], folder: Path, formats: Sequence[str] = USUAL
) -> list[Path]:
    """Writes every sheet under its name; returns the paths in order."""
    folder.mkdir(parents=True, exist_ok=True)
    each = (save(sheet, folder / name, formats) for name, sheet in sheets.items())
    return [path for paths in each for path in paths]


def save(sheet: Sheet, stem: Path, formats: Sequence[str] = USUAL) -> list[Path]:
    """Draws the sheet and writes a file of each format; returns their paths."""
    paths = [stem.with_name(f"{stem.name}.{name}") for name in formats]
    with mpl.rc_context(STYLE):  # type: ignore[arg-type]
        figure = draw(sheet)
        for path, name in zip(paths, formats, strict=True):
            figure.savefig(path, **FORMATS[name])
    return paths


def draw(sheet: Sheet) -> Figure:
    """From the top: heading, legend, panels, caption; each has the height that its text takes."""
    count = len(sheet.panels)
    _, columns, across, down = next(grid for grid in GRIDS if count <= grid[0])
    rows = math.ceil(count / columns)
    down = max(down, 0.2 * sheet.rows)
    left, right = sheet.label_width + 0.2, sheet.end_width + 0.15
    between = sheet.label_width + sheet.end_width
    width = left + columns * across + (columns - 1) * between + right
    heading = _wrapped(sheet.heading, width - left - right, HEADING * 1.1)
    titles = [_wrapped(title, across, TITLE) for title in sheet.panels]
    caption = _wrapped(sheet.caption, width - 0.2, SMALL)
    title_height = (1 + max(title.count("\n") for title in titles)) * TITLE * LINE + 0.1
    handles = handles_of(sheet.strategies, sheet.lines, has_projected=sheet.has_projected)
    longest = max(map(len, handles), default=1)
    names = max(1, min(len(handles), int((width - left - right) / (longest * 0.075 + 0.65))))
    legend_height = math.ceil(len(handles) / names) * 0.2 + 0.1
    top = 0.12 + (1 + heading.count("\n")) * HEADING * LINE + legend_height
    bottom = 0.55 + (1 + caption.count("\n")) * SMALL * LINE
    gap = title_height + 0.5
    height = top + title_height + rows * down + (rows - 1) * gap + bottom
    figure = Figure(figsize=(width, height))
    grid = figure.add_gridspec(
        rows,
        columns,
        left=left / width,
        right=1 - right / width,
        top=1 - (top + title_height) / height,
        bottom=bottom / height,
        wspace=between / across,
        hspace=gap / down,
    )
    labels = TICK_HEIGHT / down, (sheet.label_width - 0.07) / across
    for i, (title, fill_in) in enumerate(zip(titles, sheet.panels.values(), strict=True)):
        ax = figure.add_subplot(grid[i])
        fill_in(ax)
        _place(ax, title, labels, is_lowest=i + columns >= count)
        first = figure.axes[i - i % columns]
        if ax is not first and ax.get_ylabel() == first.get_ylabel():
            ax.set_ylabel("")
    at = left / width
    figure.text(at, 1 - 0.12 / height, heading, size=HEADING, weight="bold", va="top")
    if handles:
        corner = (at, 1 - (top - legend_height) / height)
        items = [*handles.values()], [*handles]
        figure.legend(*items, loc="upper left", bbox_to_anchor=corner, ncols=names)
    figure.text(0.1 / width, 0.06 / height, caption, size=SMALL, color="#444444", va="bottom")
    return figure


def _place(ax: Axes, title: str, labels: tuple[float, float], *, is_lowest: bool) -> None:
    """Title and labels, these in parts of the panel below and left of it: what finds a place of
    its own is measured at each drawing."""
    ax.set_title(title, y=1.0)
    ax.xaxis.set_label_coords(0.5, -labels[0])
    ax.yaxis.set_label_coords(-labels[1], 0.5)
    if not is_lowest:
        ax.set_xlabel("")


def _wrapped(text: str, width: float, size: float) -> str:
    """Lines of at most ``width`` inches, by the width of a common letter."""
    letters = max(10, int(width * 72 / (size * 0.57)))
    return "\n".join(textwrap.fill(line, letters) for line in text.split("\n"))
