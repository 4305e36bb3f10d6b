"""Figures as SVG inside of a page: text stays text, and no figure's ids are another's.

A page has its own headings and captions, which wrap where a picture's cannot.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import matplotlib as mpl

from spbench.report.plots.figure import STYLE, Sheet, draw

IN_PAGE = {"svg.fonttype": "none"}
"""Text is not drawn as outlines: it can be found, copied and read aloud."""
NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))
OF_A_FILE = re.compile(r"\A.*?(?=<svg)|<defs>\s*<style.*?</style>\s*</defs>", re.DOTALL)
"""Declarations, and a style that would be the whole page's: page.css has it for figures alone."""
NAMES = re.compile(r'(\sid="|href="#|url\(#)')


def pictures_of(sheets: Mapping[str, Sheet]) -> list[Mapping[str, Any]]:
    """The figures of the page, and in words what each shows, for who cannot see it. Widths are in
    points, at which texts have the size that they are drawn for."""
    return [_picture(name, sheet) for name, sheet in sheets.items()]


def _picture(name: str, sheet: Sheet) -> Mapping[str, Any]:
    """The sheet without its heading and caption, drawn in memory."""
    file = io.StringIO()
    with mpl.rc_context(STYLE | IN_PAGE):  # type: ignore[arg-type]
        figure = draw(replace(sheet, heading="", caption=""))
        figure.savefig(file, format="svg", transparent=True, metadata=NO_METADATA)
    panels = "; ".join(" ".join(title.split()) for title in sheet.panels)
    strategies = f" of {', '.join(sheet.strategies)}" if sheet.strategies else ""
    return {
        "name": name,
        "heading": sheet.heading,
        "caption": sheet.caption,
        "svg": NAMES.sub(rf"\g<1>{name}-", OF_A_FILE.sub("", file.getvalue())),
        "width": 72 * figure.get_figwidth(),
        "alt": f"{sheet.heading}{strategies}: {panels}. The tables have the figures.",
    }
