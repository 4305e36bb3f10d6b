"""Scores of projections against published measurements: errors, intervals, the cost of choosing.

The regret of a cell is the published time of the case that the projection finds fastest, over
the published best of those that are modelled, less 1. A cell competes if two cases or more were
measured. What is not modelled is shown with its reason, and counts as outside of every interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any, final

from spbench.projection.interval import Cost


@final
@dataclass(frozen=True, kw_only=True)
class Scored:
    """One published case and its projection."""

    label: str
    published_s: float
    """Seconds of what the metric covers; of a ratio, times the reference's; nan: not known."""
    projected: Cost | None
    why_not: str = ""
    low_s: float = math.nan
    high_s: float = math.nan
    projected_s: float = math.nan

    @property
    def is_within(self) -> bool:
        return self.low_s <= self.published_s <= self.high_s

    @property
    def error(self) -> float:
        """Projected over published, less 1; nan where it is not modelled."""
        return self.projected_s / self.published_s - 1


@final
@dataclass(frozen=True, kw_only=True)
class ScoredCell:
    """One cell of a point."""

    what: str
    ranks: int
    cases: tuple[Scored, ...]

    @property
    def competes(self) -> bool:
        return len(self.cases) > 1

    @property
    def chosen(self) -> Scored | None:
        """The case that the projection finds fastest; None: nothing is modelled."""
        known = [each for each in self.cases if each.projected is not None]
        return min(known, key=lambda each: each.projected_s, default=None)

    @property
    def regret(self) -> float | None:
        """None where no choice is to be made, or too little is modelled to make it."""
        known = [each for each in self.cases if each.projected is not None]
        if not self.competes or len(known) < 2 or self.chosen is None:
            return None
        return self.chosen.published_s / min(each.published_s for each in known) - 1


@final
@dataclass(frozen=True, kw_only=True)
class Group:
    """The score of one point."""

    name: str
    link: str
    cluster: str
    complete: bool
    cells: tuple[ScoredCell, ...]
    caution: str = ""

    @property
    def cases(self) -> list[Scored]:
        return [case for cell in self.cells for case in cell.cases]

    @property
    def regrets(self) -> list[float]:
        return [cell.regret for cell in self.cells if cell.regret is not None]

    @property
    def data(self) -> dict[str, Any]:
        """One object of ``--json``."""
        errors = [abs(case.error) for case in self.cases if case.projected is not None]
        return {
            "group": self.name,
            "link": self.link,
            "cluster": self.cluster,
            "complete": self.complete,
            "caution": self.caution,
            "median_error": median(errors) if errors else None,
            "mean_regret": mean(self.regrets) if self.regrets else None,
            "pairs_in_order": pairs_in_order(self.cells),
            "coverage": mean(case.is_within for case in self.cases) if self.complete else None,
            "not_modelled": sorted({case.why_not for case in self.cases if case.why_not}),
            "cells": [
                {
                    "set": cell.what,
                    "ranks": cell.ranks,
                    "regret": cell.regret,
                    "cases": [_case_data(case) for case in cell.cases],
                }
                for cell in self.cells
            ],
        }


def _case_data(case: Scored) -> dict[str, Any]:
    known = case.projected is not None
    return {
        "case": case.label,
        "published_s": None if math.isnan(case.published_s) else case.published_s,
        "projected_s": case.projected_s if known else None,
        "low_s": case.low_s if known else None,
        "high_s": case.high_s if known else None,
        "within": case.is_within,
        "why_not": case.why_not,
    }


def pairs_in_order(cells: Sequence[ScoredCell]) -> float | None:
    """The part of pairs of a cell's cases that the projection puts in the published order."""
    right = []
    for cell in cells:
        known = [case for case in cell.cases if case.projected is not None]
        for i, one in enumerate(known):
            for other in known[i + 1 :]:
                apart = one.published_s - other.published_s
                right.append((one.projected_s - other.projected_s) * apart > 0 or apart == 0)
    return mean(right) if right else None


def summary(groups: Sequence[Group]) -> dict[str, float | None]:
    """Mean regret by link, and coverage, over the complete points."""
    complete = [group for group in groups if group.complete]
    cases = [case for group in complete for case in group.cases]
    cells = [cell for group in complete for cell in group.cells if cell.competes]
    regrets = {
        link: [regret for group in complete if group.link == link for regret in group.regrets]
        for link in ("nvlink", "pcie")
    }
    return {
        **{f"mean_regret_{link}": mean(own) if own else None for link, own in regrets.items()},
        "coverage": mean(case.is_within for case in cases) if cases else None,
        "cells_compared": mean(cell.regret is not None for cell in cells) if cells else None,
    }
