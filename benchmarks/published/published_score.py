"""Published measurements beside their projection, point by point.

The regret of a cell is the published time of the case that the projection finds fastest, over
the published best of those that are modelled, less 1. A cell competes if two cases or more were
measured. Where the source's own variants of both (``low`` to ``high``) overlap, it does not tell
them apart: that costs nothing, and is counted by itself. What is not modelled is shown with its
reason, and counts as outside of every interval.

Intervals, and how sure a choice is, are drawn as ``spbench recommend`` draws them, but for the own
scatter of strategies: each group has that of the others (``published_scatter``).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from statistics import mean, median
from typing import Any

import numpy as np
from published_points import Point
from published_scatter import CellErrors, Scatter, errors_of, held, shared_part
from published_terms import cluster_of
from published_work import Beside, BesideCell, BesidePoint, link_of, weigh

from spbench.errors import Failure
from spbench.projection.costmodel.step_time import Cost
from spbench.projection.dryrun.rank_work import WorkOf
from spbench.results.record import SURE

ScoredCase = dict[str, Any]
"""One published ``case``: ``published_s``, seconds of what the metric covers, or of a ratio times
the reference's, and the least and most of its source's variants; ``projected_s``, ``low_s`` and
``high_s``; None: not known, or not modelled, and ``why_not``. ``within``: whether the interval
holds what was published."""
ScoredCell = dict[str, Any]
"""One cell of a point: its ``set``, ``ranks``, ``class`` and ``cases``; ``sure``, the share of
draws in which the chosen one is the fastest; ``regret`` beyond what the source tells apart, and
``plain_regret``: None where no choice is to be made, or too little is modelled to make it."""
Group = dict[str, Any]
"""The score of one point, as one object of ``--json``."""


def judge(points: Iterable[Point], work_of: WorkOf) -> tuple[list[Group], dict[str, str]]:
    """The scores of points, each with the scatter of the others, and by the id of each that cannot
    be judged why: whatever is wrong with it, it never ends the others."""
    weighed, unjudged = dict[int, BesidePoint](), dict[str, str]()
    errors: list[tuple[int, str, CellErrors]] = []
    for number, point in enumerate(points):
        try:
            one = weigh(point, work_of)
            errors += [(number, cell.machine, cell.errors) for cell in one.cells]
            weighed[number] = one
        except Exception as error:
            unjudged[point.id] = f"{type(error).__name__}: {error}"
    scatter, groups = Scatter.of(errors), list[Group]()
    for number, one in weighed.items():
        try:
            groups.append(scored_point(one, scatter, without=number))
        except Exception as error:
            unjudged[one.point.id] = f"{type(error).__name__}: {error}"
    return groups, unjudged


def score(point: Point, work_of: WorkOf) -> Group:
    """A point beside its projection, with the scatter that the package carries; one that is
    incomplete is shown, not projected."""
    return scored_point(weigh(point, work_of), Scatter.of([]))


def scored_point(one: BesidePoint, scatter: Scatter, without: int | None = None) -> Group:
    """The score of a point, with the scatter of all groups but the one of that number."""
    point = one.point
    cells = [
        _scored_cell(each, scatter.factor(each.machine, each.cell.ranks, without))
        for each in one.cells
    ]
    try:
        name = cluster_of(point.hardware)
    except Failure:
        name = ""
    about = {"group": point.id, "link": link_of(point), "cluster": name, "complete": point.complete}
    return scored(about | {"caution": point.caution}, cells)


def _scored_cell(beside: BesideCell, scatter: float) -> ScoredCell:
    """The cell with intervals, and how sure its choice is."""
    what = ", ".join(f"{key} {_brief(value)}" for key, value in beside.cell.set.items())
    costs = [case.priced.cost(scatter) if case.priced else None for case in beside.cases]
    reference = None if beside.reference is None else costs[beside.reference]
    cases = [_case(case, took, reference) for case, took in zip(beside.cases, costs, strict=True)]
    cell = scored_cell(what, beside.cell.ranks, cases)
    return cell | {"class": beside.machine, "scatter": scatter, "sure": _sure(costs)}


def _sure(costs: Sequence[Cost | None]) -> float | None:
    """The share of draws in which the fastest of the middle is the fastest; None: no choice."""
    modelled = sorted(filter(None, costs), key=lambda took: took.step_s)
    if len(modelled) < 2:
        return None
    best, *others = modelled
    return float(np.mean(np.all([other.draws > best.draws for other in others], axis=0)))


def _brief(value: Any) -> str:
    return " x ".join(map(str, value.values())) if isinstance(value, Mapping) else str(value)


def _case(case: Beside, took: Cost | None, reference: Cost | None) -> ScoredCase:
    """With projected seconds, or their ratio to a ``reference`` where ratios were published."""
    published_s, times = case.published_s, None
    if took is not None:
        times = took.step_s, took.low_s, took.high_s
    if took is not None and reference is not None:
        ratio = took.step_s / reference.step_s
        own, other = (math.log(cost.high_s / cost.low_s) / 4 for cost in (took, reference))
        wide = math.exp(2 * math.hypot(own, other))
        times = ratio, ratio / wide, ratio * wide
    projected_s, low_s, high_s = times or (None, None, None)
    least_s, most_s = case.span_s or (published_s, published_s)
    return {
        "case": case.label,
        "published_s": published_s,
        "published_low_s": least_s,
        "published_high_s": most_s,
        "projected_s": projected_s,
        "low_s": low_s,
        "high_s": high_s,
        "within": bool(published_s and times and times[1] <= published_s <= times[2]),
        "why_not": case.why_not,
    }


def scored_cell(what: str, ranks: int, cases: Sequence[ScoredCase]) -> ScoredCell:
    """A cell with what its choice costs."""
    modelled = [case for case in cases if None not in (case["published_s"], case["projected_s"])]
    plain = regret = None
    if len(modelled) > 1:
        chosen = min(modelled, key=lambda case: case["projected_s"])
        best = min(modelled, key=lambda case: case["published_s"])
        plain = chosen["published_s"] / best["published_s"] - 1
        is_told_apart = chosen["published_low_s"] > best["published_high_s"]
        regret = plain if is_told_apart else 0.0
    return {"set": what, "ranks": ranks, "regret": regret, "plain_regret": plain, "cases": cases}


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


def _regrets(cells: Sequence[ScoredCell], name: str = "regret") -> list[float]:
    return [cell[name] for cell in cells if cell[name] is not None]


def _pairs_in_order(cells: Sequence[ScoredCell]) -> float | None:
    """The part of pairs of a cell's cases that the projection puts in the published order."""
    pairs = [pair for cell in cells for pair in combinations(_modelled(cell["cases"]), 2)]
    apart = [(one[0] - other[0], one[1] - other[1]) for one, other in pairs]
    return _mean([published * projected > 0 or not published for published, projected in apart])


def summary(groups: Sequence[Group]) -> dict[str, Any]:
    """Mean and worst regret, by link and by class of machine, errors and coverage, over the
    complete points."""
    complete = [group for group in groups if group["complete"]]
    cells: list[ScoredCell] = [cell for group in complete for cell in group["cells"]]
    competing = [cell for cell in cells if len(cell["cases"]) > 1]
    by_link = {
        link: [cell for group in complete if group["link"] == link for cell in group["cells"]]
        for link in ("nvlink", "pcie")
    }
    linked = [cell for of_link in by_link.values() for cell in of_link]
    return {
        **{f"mean_regret_{link}": _mean(_regrets(own)) for link, own in by_link.items()},
        "worst_regret": max(_regrets(linked), default=None),
        **{
            f"plain_mean_regret_{link}": _mean(_regrets(own, "plain_regret"))
            for link, own in by_link.items()
        },
        "plain_worst_regret": max(_regrets(linked, "plain_regret"), default=None),
        **_errors(cells),
        **_calls(cells),
        "classes": _classes(complete),
        "shared_part": shared_part(
            [_errors_of(cell) for cell in group["cells"]] for group in complete
        ),
        "cells_compared": _mean([cell["regret"] is not None for cell in competing]),
    }


def _classes(groups: Sequence[Group]) -> dict[str, dict[str, Any]]:
    """By class of machine what choices cost, how far times and ratios are off, and what was said
    rightly."""
    by_class: dict[str, list[tuple[int, ScoredCell]]] = {}
    for number, group in enumerate(groups):
        for cell in group["cells"]:
            by_class.setdefault(cell["class"], []).append((number, cell))
    scatter = Scatter.of(
        (number, name, _errors_of(cell)) for name, own in by_class.items() for number, cell in own
    )
    return {
        name: {
            "scatter": scatter.factor(name, max(cell["ranks"] for _, cell in own)),
            "held": held([(number, _errors_of(cell)) for number, cell in own], scatter, name),
        }
        | _of_class(own)
        for name, own in sorted(by_class.items())
    }


def _errors_of(cell: ScoredCell) -> CellErrors:
    return errors_of((x["case"], x["published_s"], x["projected_s"]) for x in cell["cases"])


def _of_class(own: Sequence[tuple[int, ScoredCell]]) -> dict[str, Any]:
    cells = [cell for _, cell in own]
    choices = [cell for cell in cells if cell["regret"] is not None]
    return {
        "cells": len(choices),
        "groups": len({group for group, cell in own if cell["regret"] is not None}),
        "most_ranks": max((cell["ranks"] for cell in choices), default=0),
        "mean_regret": _mean(_regrets(cells)),
        "worst_regret": max(_regrets(cells), default=None),
        "plain_mean_regret": _mean(_regrets(cells, "plain_regret")),
        "plain_worst_regret": max(_regrets(cells, "plain_regret"), default=None),
        **_errors(cells),
        **_calls(cells),
    }


def _errors(cells: Sequence[ScoredCell]) -> dict[str, Any]:
    """The median error of times, and the share of them within their interval."""
    cases = [case for cell in cells for case in cell["cases"]]
    errors = [abs(projected / published - 1) for published, projected in _modelled(cases)]
    return {
        "median_error": median(errors) if errors else None,
        "coverage": _mean([case["within"] for case in cases]),
    }


def _calls(cells: Sequence[ScoredCell]) -> dict[str, int]:
    """How many choices cost nothing only as the source does not tell them apart; how many winners
    were named, as they are the fastest in nine of ten draws, and how many of these rightly: the
    published best, or not told apart from it; and how many are the published best as printed."""
    choices = [cell for cell in cells if cell["regret"] is not None]
    named = [cell for cell in choices if cell["sure"] >= SURE]
    return {
        "not_told_apart": sum(cell["plain_regret"] > cell["regret"] for cell in choices),
        "named": len(named),
        "named_rightly": sum(cell["regret"] == 0 for cell in named),
        "named_best": sum(cell["plain_regret"] == 0 for cell in named),
    }


KEPT = (
    *("scatter", "groups", "cells", "most_ranks", "mean_regret", "worst_regret"),
    *("not_told_apart", "plain_worst_regret"),
)
"""What ``spbench recommend`` says of a class of machines, or draws with."""


def figures_text(classes: Mapping[str, Mapping[str, Any]]) -> str:
    """The file of figures that the package carries, of classes that have a choice."""
    lines = [
        "# What a comparison with published measurements shows, by class of machine; made by",
        "#     python benchmarks/published/score.py --write",
        "# from benchmarks/published/points.yaml. No constant of a cluster is made of it.",
        "version: 1",
        "classes:",
    ]
    for name, of_class in classes.items():
        if of_class["cells"]:
            lines.append(f"  {name}:")
            lines += [f"    {key}: {_rounded(of_class[key])}" for key in KEPT]
    return "\n".join([*lines, ""])


def _rounded(value: float) -> float | int:
    """With four digits behind the point, more than any of them is known to."""
    return value if isinstance(value, int) else round(value, 4)


def _mean(values: Sequence[float]) -> float | None:
    return mean(values) if values else None
