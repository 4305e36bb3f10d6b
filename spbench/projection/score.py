"""Scores of projections against published measurements: errors, intervals, the cost of choosing.

The regret of a cell is the published time of the case that the projection finds fastest, over
the published best of those that are modelled, less 1. A cell competes if two cases or more were
measured. What is not modelled is shown with its reason, and counts as outside of every interval.
"""

from collections.abc import Sequence
from itertools import combinations
from statistics import mean, median
from typing import Any

ScoredCase = dict[str, Any]
"""One published ``case``: ``published_s``, seconds of what the metric covers, or of a ratio times
the reference's; ``projected_s``, ``low_s`` and ``high_s``; None: not known, or not modelled, and
``why_not``. ``within``: whether the interval holds what was published."""
ScoredCell = dict[str, Any]
"""One cell of a point: its ``set``, ``ranks``, ``cases`` and ``regret``, None where no choice is to
be made, or too little is modelled to make it."""
Group = dict[str, Any]
"""The score of one point, as one object of ``--json``."""


def scored_cell(what: str, ranks: int, cases: Sequence[ScoredCase]) -> ScoredCell:
    known = _modelled(cases)
    regret = None
    if len(known) > 1:
        chosen_s, _ = min(known, key=lambda times: times[1])
        regret = chosen_s / min(published_s for published_s, _ in known) - 1
    return {"set": what, "ranks": ranks, "regret": regret, "cases": cases}


def scored(about: Group, cells: Sequence[ScoredCell]) -> Group:
    """What is known ``about`` a point, and its errors; cells that compete have the regrets."""
    cases = [case for cell in cells for case in cell["cases"]]
    errors = [abs(projected / published - 1) for published, projected in _modelled(cases)]
    return about | {
        "median_error": median(errors) if errors else None,
        "mean_regret": _mean(_regrets(cells)),
        "pairs_in_order": _pairs_in_order(cells),
        "coverage": mean(case["within"] for case in cases) if about["complete"] else None,
        "not_modelled": sorted({case["why_not"] for case in cases if case["why_not"]}),
        "cells": cells,
    }


def _modelled(cases: Sequence[ScoredCase]) -> list[tuple[float, float]]:
    """Published and projected seconds of the cases that are modelled."""
    return [
        (case["published_s"], case["projected_s"])
        for case in cases
        if case["published_s"] is not None and case["projected_s"] is not None
    ]


def _regrets(cells: Sequence[ScoredCell]) -> list[float]:
    return [cell["regret"] for cell in cells if cell["regret"] is not None]


def _pairs_in_order(cells: Sequence[ScoredCell]) -> float | None:
    """The part of pairs of a cell's cases that the projection puts in the published order."""
    pairs = [pair for cell in cells for pair in combinations(_modelled(cell["cases"]), 2)]
    apart = [(one[0] - other[0], one[1] - other[1]) for one, other in pairs]
    return _mean([published * projected > 0 or not published for published, projected in apart])


def summary(groups: Sequence[Group]) -> dict[str, float | None]:
    """Mean regret by link, and coverage, over the complete points."""
    complete = [group for group in groups if group["complete"]]
    cells: list[ScoredCell] = [cell for group in complete for cell in group["cells"]]
    competing = [cell for cell in cells if len(cell["cases"]) > 1]
    regrets = {
        link: [x for group in complete if group["link"] == link for x in _regrets(group["cells"])]
        for link in ("nvlink", "pcie")
    }
    return {
        **{f"mean_regret_{link}": _mean(own) for link, own in regrets.items()},
        "coverage": _mean([case["within"] for cell in cells for case in cell["cases"]]),
        "cells_compared": _mean([cell["regret"] is not None for cell in competing]),
    }


def _mean(values: Sequence[float]) -> float | None:
    return mean(values) if values else None
