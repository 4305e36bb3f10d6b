"""A figure: a heading, a legend, a grid of panels, a caption; and its files: PNG, SVG, PDF.

A sheet is plain data: what is drawn into each panel is a mark, which also says how much room its
labels take and what the legend has to explain. Places are in inches and worked out before anything
is drawn: labels have short figures, texts are wrapped to their width. Measuring what was drawn
would take longer than drawing it.
"""

import math
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from spbench.report.plots.style import HEADING, PROJECTED, PROJECTED_HATCH, SMALL, STYLE, TITLE

PANELS = 12
"""The most panels on a sheet: more are too small to read, and too slow to draw."""
GRIDS = ((1, 1, 7.2, 3.1), (4, 2, 5.2, 2.7), (PANELS, 3, 4.3, 2.3))
"""A number of panels, and up to it: columns, a panel's width and height in inches, labels apart."""
LINE = 1.35 / 72
"""Inches of a line of text, for each point of its size."""
TICK_HEIGHT = 0.28
"""Inches of a tick and its figure, below a panel."""
FORMATS: Mapping[str, Mapping[str, Any]] = {
    "png": {"pil_kwargs": {"compress_level": 3}},
    "svg": {"metadata": {"Date": None}},
    "pdf": {"metadata": {"CreationDate": None}},
}
"""Options by the ending of a file: a PNG of level 3 takes half the time of level 6."""
USUAL = ("png", "svg")


class Mark(ABC):
    """What is drawn into one panel, and what its sheet keeps free and explains for it."""

    @abstractmethod
    def draw(self, ax: Axes) -> None:
        """Fills the axes, whose size is that on the sheet."""

    @property
    def is_projected(self) -> bool:
        """Whether the legend says how a projected case looks."""
        return False

    @property
    def legend(self) -> Mapping[str, Artist]:
        """Names of the legend, and what stands before each."""
        return {}

    @property
    def left(self) -> float:
        """Inches of the labels left of the panel."""
        return 0.65

    @property
    def right(self) -> float:
        """Inches of the texts right of the panel."""
        return 0.1

    @property
    def rows(self) -> int:
        """Labels above each other, each of which needs some height."""
        return 0


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """A heading, panels by their titles and in order, and a caption."""

    heading: str
    panels: Mapping[str, Mark]
    caption: str
    remarks: Sequence[str] = ()
    """Sentences about what could not be drawn, to be said beside the figure."""

    @property
    def has_projected(self) -> bool:
        return any(mark.is_projected for mark in self.panels.values())

    @property
    def legend(self) -> dict[str, Artist]:
        """Each name once, in the order in which the panels have it."""
        names = {name: one for mark in self.panels.values() for name, one in mark.legend.items()}
        if self.has_projected:
            look: dict[str, Any] = {"facecolor": "#EEEEEE", "edgecolor": "#777777", "linewidth": 0}
            names[PROJECTED] = Patch(hatch=PROJECTED_HATCH, **look)
        return names


def save_all(
    sheets: Mapping[str, Sheet], folder: Path, formats: Sequence[str] = USUAL
) -> list[Path]:
    """Writes every sheet under its name; returns the paths in order."""
    folder.mkdir(parents=True, exist_ok=True)
    written = (save(sheet, folder / name, formats) for name, sheet in sheets.items())
    return [path for paths in written for path in paths]


def save(sheet: Sheet, stem: Path, formats: Sequence[str] = USUAL) -> list[Path]:
    """Draws the sheet and writes a file of each format; returns their paths."""
    paths = [stem.with_name(f"{stem.name}.{name}") for name in formats]
    with mpl.rc_context(STYLE):
        figure = draw(sheet)
        for path, name in zip(paths, formats, strict=True):
            figure.savefig(path, **FORMATS[name])
    return paths


def draw(sheet: Sheet) -> Figure:
    """From the top: heading, legend, panels, caption; each has the height that its text takes."""
    marks, count = [*sheet.panels.values()], len(sheet.panels)
    _, columns, across, down = next(grid for grid in GRIDS if count <= grid[0])
    rows = math.ceil(count / columns)
    down = max(down, 0.2 * max(mark.rows for mark in marks))
    label_width = max(mark.left for mark in marks)
    end_width = max(mark.right for mark in marks)
    left, right, between = label_width + 0.2, end_width + 0.15, label_width + end_width
    width = left + columns * across + (columns - 1) * between + right

    heading = _wrapped(sheet.heading, width - left - right, HEADING * 1.1)  # bold is wider
    titles = [_wrapped(title, across, TITLE) for title in sheet.panels]
    caption = _wrapped(sheet.caption, width - 0.2, SMALL)
    title_height = (1 + max(title.count("\n") for title in titles)) * TITLE * LINE + 0.1
    legend = sheet.legend
    # A letter takes about 0.075 inches, and what stands before a name 0.65.
    name_width = max(map(len, legend), default=1) * 0.075 + 0.65
    names = max(1, min(len(legend), int((width - left - right) / name_width)))
    legend_height = math.ceil(len(legend) / names) * 0.2 + 0.1
    top = 0.12 + (1 + heading.count("\n")) * HEADING * LINE + legend_height
    bottom = 0.55 + (1 + caption.count("\n")) * SMALL * LINE
    gap = title_height + 0.5
    height = top + title_height + rows * down + (rows - 1) * gap + bottom

    figure = Figure(figsize=(width, height))
    # matplotlib wants edges as parts of the figure, gaps as parts of a panel.
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
    labels = TICK_HEIGHT / down, (label_width - 0.07) / across
    for i, (title, mark) in enumerate(zip(titles, marks, strict=True)):
        ax = figure.add_subplot(grid[i])
        mark.draw(ax)
        _place(ax, title, labels, is_lowest=i + columns >= count)
        first = figure.axes[i - i % columns]  # of the row: it alone has a label if all are alike
        if ax is not first and ax.get_ylabel() == first.get_ylabel():
            ax.set_ylabel("")
    at = left / width
    figure.text(at, 1 - 0.12 / height, heading, size=HEADING, weight="bold", va="top")
    if legend:
        corner = (at, 1 - (top - legend_height) / height)
        items = [*legend.values()], [*legend]
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
    """Lines of at most ``width`` inches, by the width of a common letter: 0.57 of its size."""
    letters = max(10, int(width * 72 / (size * 0.57)))
    return "\n".join(textwrap.fill(line, letters) for line in text.split("\n"))
