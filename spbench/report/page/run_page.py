"""A run as one page: the answer in words, tables, figures, how it was measured, and where.

The page needs nothing but itself: style, script and figures stand in it. All text is escaped where
it is set, so that a reason may hold any characters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from spbench.report.page.answer import Answer
from spbench.report.page.inline_svg import Picture
from spbench.report.page.method import Facts
from spbench.report.page.page_tables import MEANINGS, PageTable

TEMPLATES = Path(__file__).parent
MOST_NAMES = 3
"""Workloads that a title names."""


@dataclass(frozen=True, kw_only=True)
class RunPage:
    """All that the page shows."""

    run: str
    workloads: Sequence[str]
    about: str
    """Machine, libraries and launches in one line."""
    answer: Answer
    tables: Sequence[PageTable]
    pictures: Sequence[Picture]
    not_drawn: Sequence[str]
    """Sentences on figures that are not drawn."""
    trouble: PageTable
    method: Facts
    environment: Facts
    again: str
    """The command that repeats the run; blank where it is not known."""
    commit: str
    others: Sequence[str]
    """Commands that show more of the run."""
    version: str

    @property
    def title(self) -> str:
        names = self.workloads
        return ", ".join(names) if len(names) <= MOST_NAMES else f"{len(names)} workloads"

    @property
    def meanings(self) -> Facts:
        """Heads of the tables in words."""
        heads = {head for table in self.tables for head in table.heads}
        return [(head, meaning) for head, meaning in MEANINGS.items() if head in heads]


def html_of(page: RunPage) -> str:
    """The whole page."""
    setting = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return setting.get_template("page.html").render(page=page)
