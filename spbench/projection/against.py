"""Published measurements beside their projection, point by point.

What published engines do besides what a strategy asks for is stated once for all points: here a
fixed time of a generation, and an engine's time beyond its kernels; in ``published_case`` merges in
float32, and queries, keys and values that go apart.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, final

from pydantic import ValidationError

from spbench.errors import Failure
from spbench.projection.costmodel.constants import Constant
from spbench.projection.costmodel.hardware import Cluster, find
from spbench.projection.costmodel.step_time import Cost, cost
from spbench.projection.dryrun.rank_work import WorkOf
from spbench.projection.published import Point, PublishedCase, PublishedCell
from spbench.projection.published_case import Counterpart, counterpart
from spbench.projection.published_terms import cluster_of, published_seconds, steps_of
from spbench.projection.score import Group, ScoredCase, ScoredCell, scored, scored_cell
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
