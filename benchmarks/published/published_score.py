"""Published measurements beside their projection, point by point.

What published engines do besides what a strategy asks for is stated once for all points: here a
fixed time of a generation, and an engine's time beyond its kernels; in ``published_case`` merges in
float32, and queries, keys and values that go apart.

The regret of a cell is the published time of the case that the projection finds fastest, over
the published best of those that are modelled, less 1. A cell competes if two cases or more were
measured. What is not modelled is shown with its reason, and counts as outside of every interval.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from statistics import mean, median
from typing import Any, final

from published_case import Counterpart, counterpart
from published_points import Point, PublishedCase, PublishedCell
from published_terms import cluster_of, published_seconds, steps_of
from pydantic import ValidationError

from spbench.errors import Failure
from spbench.projection.costmodel.cluster_file import find
from spbench.projection.costmodel.constants import Constant
from spbench.projection.costmodel.hardware import Cluster
from spbench.projection.costmodel.step_time import Cost, cost
from spbench.projection.dryrun.rank_work import WorkOf
from spbench.workload.workload import Workload

MODEL_S = 0.15
"""Time of a generation beside denoising and decoding: prompts, schedules, copies; inferred."""
IMAGE_US, VIDEO_US = 40.0, 290.0
"""Time of decoding one token on a device of ``DECODED_AT``, not shared among ranks: 256 and 1,024
pixels at 0.15 and 0.28 us each; inferred from decoders' operations."""
DECODED_AT = 240.0
FIXED_SPREAD = 3.0
UNTOLD_KERNEL = "flash-attn 2"
"""Attention of a published measurement that does not say, or says what no cluster has."""
ENGINE = Constant(
    value=1.15,
    spread=1.5,
    kind="inferred",
    source="four engines run one model on one H100 in 5.18 to 8.93 s a step (LightX2V's README), in"
    " the middle 1.15 times what products, attention and passes over memory take",
)
"""What an engine takes over the sum of the terms."""


CLASS_SIZES = (4, 8, 72)
"""GPUs up to which machines are of one class."""
ScoredCase = dict[str, Any]
"""One published ``case``: ``published_s``, seconds of what the metric covers, or of a ratio times
the reference's; ``projected_s``, ``low_s`` and ``high_s``; None: not known, or not modelled, and
``why_not``. ``within``: whether the interval holds what was published."""
ScoredCell = dict[str, Any]
"""One cell of a point: its ``set``, ``ranks``, ``cases`` and ``regret``, None where no choice is to
be made, or too little is modelled to make it."""
Group = dict[str, Any]
"""The score of one point, as one object of ``--json``."""


def judge(points: Iterable[Point], work_of: WorkOf) -> tuple[list[Group], dict[str, str]]:
    """The scores of points, and by the id of each that cannot be judged why: whatever is wrong with
    it, it never ends the others."""
    groups, unjudged = list[Group](), dict[str, str]()
    for point in points:
        try:
            groups.append(score(point, work_of))
        except Exception as error:
            unjudged[point.id] = f"{type(error).__name__}: {error}"
    return groups, unjudged


def score(point: Point, work_of: WorkOf) -> Group:
    """A point beside its projection; one that is incomplete is shown, not projected."""
    cells = [_scored_cell(point, cell, work_of) for cell in point.cells]
    link = "nvlink" if point.hardware.link in ("nvlink", "nvl72") else point.hardware.link
    try:
        name = cluster_of(point.hardware)
    except Failure:
        name = ""
    about = {"group": point.id, "link": link, "cluster": name, "complete": point.complete}
    return scored(about | {"caution": point.caution}, cells)


@final
@dataclass(frozen=True, kw_only=True)
class Beside:
    """One published case and its cost here, or why there is none."""

    label: str
    published_s: float | None
    projected: Cost | None = None
    why_not: str = ""


def _scored_cell(point: Point, cell: PublishedCell, work_of: WorkOf) -> ScoredCell:
    what = ", ".join(f"{key} {_brief(value)}" for key, value in cell.set.items())
    found = [_beside(point, cell, case, work_of) for case in cell.cases]
    reference = None
    if point.metric.name == "ratio":
        of_reference = (b.projected for b, c in zip(found, cell.cases, strict=True) if c.value == 1)
        reference = next(of_reference, None)
        if reference is None:
            why = "the reference of these ratios is not modelled"
            found = [replace(x, projected=None, why_not=x.why_not or why) for x in found]
    return scored_cell(what, cell.ranks, [_case(each, reference) for each in found])


def _brief(value: Any) -> str:
    return " x ".join(map(str, value.values())) if isinstance(value, Mapping) else str(value)


def _case(each: Beside, reference: Cost | None) -> ScoredCase:
    """With projected seconds, or their ratio to a ``reference`` where ratios were published."""
    step, published_s, times = each.projected, each.published_s, None
    if step is not None:
        times = step.step_s, step.low_s, step.high_s
    if step is not None and reference is not None:
        ratio = step.step_s / reference.step_s
        own, other = (math.log(cost.high_s / cost.low_s) / 4 for cost in (step, reference))
        wide = math.exp(2 * math.hypot(own, other))
        times = ratio, ratio / wide, ratio * wide
    projected_s, low_s, high_s = times or (None, None, None)
    return {
        "case": each.label,
        "published_s": published_s,
        "projected_s": projected_s,
        "low_s": low_s,
        "high_s": high_s,
        "within": bool(published_s and times and times[1] <= published_s <= times[2]),
        "why_not": each.why_not,
    }


_cluster = cache(find)  # hundreds of published cases name a dozen


def _beside(point: Point, cell: PublishedCell, case: PublishedCase, work_of: WorkOf) -> Beside:
    facts, seconds = point.workload | cell.set, None
    try:
        seconds = published_seconds(point, facts, cell, case)
        if not point.complete:
            raise Failure("the point is incomplete")
        found = counterpart(point, cell, case)
        projected = _projected(point, facts, found, _cluster(found.cluster), work_of)
        return Beside(label=case.label, published_s=seconds, projected=projected)
    except ValidationError as error:
        why = error.errors()[0]["msg"].removeprefix("Value error, ")
    except Failure as failure:
        why = str(failure)
    return Beside(label=case.label, published_s=seconds, why_not=why)


def _projected(
    point: Point, facts: dict[str, Any], found: Counterpart, cluster: Cluster, work_of: WorkOf
) -> Cost:
    work = work_of(found.workload, found.strategy, found.ranks)
    if found.kernels_of != found.strategy:
        work = replace(work, kernels=work_of(found.workload, found.kernels_of, found.ranks).kernels)
    if found.only_backward:
        work = replace(
            work,
            kernels={each: n for each, n in work.kernels.items() if each.phase != "forward"},
            messages={each: n for each, n in work.messages.items() if each.phase != "forward"},
        )
    is_generation = point.metric.per == "generation" and "enois" not in point.metric.time
    named = (found.mode.attention_kernel, UNTOLD_KERNEL)
    mode = replace(
        found.mode,
        attention_kernel=next((x for x in named if x in cluster.device.kernels), ""),
        fixed_s=_fixed(found.workload, cluster) if is_generation else 0.0,
        fixed_spread=FIXED_SPREAD,
        repeats=steps_of(point, facts),
        beyond=ENGINE if point.op == "model" else None,
    )
    return cost(work, cluster, mode)


def _fixed(workload: Workload, cluster: Cluster) -> float:
    """Seconds of a generation beside the steps of the model."""
    rate = cluster.device.products.tflops["bfloat16"](1e3)
    tokens_us = VIDEO_US if workload.tokens > 20_000 else IMAGE_US
    return MODEL_S + workload.tokens * tokens_us / 1e6 * DECODED_AT / rate


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


def summary(groups: Sequence[Group]) -> dict[str, Any]:
    """Mean and worst regret, by link and by class of machine, errors and coverage, over the
    complete points. A class is a link and the most GPUs of a choice: ``pcie, up to 8 GPUs``."""
    complete = [group for group in groups if group["complete"]]
    cells: list[ScoredCell] = [cell for group in complete for cell in group["cells"]]
    competing = [cell for cell in cells if len(cell["cases"]) > 1]
    regrets = {
        link: [x for group in complete if group["link"] == link for x in _regrets(group["cells"])]
        for link in ("nvlink", "pcie")
    }
    errors = [
        abs(projected / published - 1)
        for cell in cells
        for published, projected in _modelled(cell["cases"])
    ]
    return {
        **{f"mean_regret_{link}": _mean(own) for link, own in regrets.items()},
        "worst_regret": max((x for own in regrets.values() for x in own), default=None),
        "median_error": median(errors) if errors else None,
        "classes": _classes(complete),
        "coverage": _mean([case["within"] for cell in cells for case in cell["cases"]]),
        "cells_compared": _mean([cell["regret"] is not None for cell in competing]),
    }


def _classes(groups: Sequence[Group]) -> dict[str, dict[str, Any]]:
    """By class of machine what the choice cost, and how far ratios of published times are off."""
    by_class: dict[str, list[ScoredCell]] = {}
    for group in groups:
        for cell in group["cells"]:
            few = next((most for most in CLASS_SIZES if cell["ranks"] <= most), None)
            name = f"{group['link']}, " + (f"up to {few} GPUs" if few else "more GPUs")
            by_class.setdefault(name, []).append(cell)
    return {
        name: {
            "cells": len(_regrets(cells)),
            "mean_regret": _mean(_regrets(cells)),
            "worst_regret": max(_regrets(cells), default=None),
            "coverage": _mean([case["within"] for cell in cells for case in cell["cases"]]),
        }
        for name, cells in sorted(by_class.items())
    }


def _mean(values: Sequence[float]) -> float | None:
    return mean(values) if values else None
