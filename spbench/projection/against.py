"""Published measurements beside their projection, point by point.

What published engines do besides what a strategy asks for is stated here, once for all points:
a fixed time of a generation, an engine's time beyond its kernels, merges in float32, queries,
keys and values that go apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from pydantic import ValidationError

from spbench.errors import Failure
from spbench.projection.constants import Constant
from spbench.projection.cost import Mode, cost
from spbench.projection.hardware import Cluster, find
from spbench.projection.interval import Cost
from spbench.projection.published import Point, PublishedCase, PublishedCell
from spbench.projection.published_case import Counterpart, counterpart
from spbench.projection.published_terms import cluster_of, published_seconds, steps_of
from spbench.projection.score import Group, Scored, ScoredCell
from spbench.projection.work import Work
from spbench.workload.workload import Workload

WorkOf = Callable[[Workload, str, int], Work]
"""The work of a strategy, by name, on so many ranks."""
MODEL_S = 0.15
"""Time of a generation beside denoising and decoding: prompts, schedules, copies; inferred."""
IMAGE_US, VIDEO_US = 40.0, 290.0
"""Time of decoding one token on a device of ``DECODED_AT``, not shared among ranks: 256 and 1,024
pixels at 0.15 and 0.28 us each; inferred from decoders' operations."""
DECODED_AT = 240.0
FIXED_SPREAD = 3.0
ENGINE = Constant(
    value=1.15,
    spread=1.5,
    kind="inferred",
    source="four engines run one model on one H100 in 5.18 to 8.93 s a step (LightX2V's README), in"
    " the middle 1.15 times what products, attention and passes over memory take",
)
"""What an engine takes over the sum of the terms."""
MERGES = 2.0
"""Passes over an output that published rings merge block by block, over those of one fused
kernel: they convert each block to float32 first (ring-flash-attention, utils.py)."""
APART = 2.0
"""Collectives of an exchange whose queries, keys and values go apart, 4 in place of 2, and of a
shift of keys and values."""


def score(point: Point, work_of: WorkOf) -> Group:
    """A point beside its projection; one that is incomplete is shown, not projected."""
    cells = tuple(_scored_cell(point, cell, work_of) for cell in point.cells)
    link = "nvlink" if point.hardware.link in ("nvlink", "nvl72") else point.hardware.link
    try:
        name = cluster_of(point.hardware)
    except Failure:
        name = ""
    return Group(
        name=point.id,
        link=link,
        cluster=name,
        complete=point.complete,
        cells=cells,
        caution=point.caution,
    )


def _scored_cell(point: Point, cell: PublishedCell, work_of: WorkOf) -> ScoredCell:
    what = ", ".join(f"{key} {_brief(value)}" for key, value in cell.set.items())
    cases = [_scored(point, cell, case, work_of) for case in cell.cases]
    if point.metric.name == "ratio":
        cases = _relative(cell, cases)
    return ScoredCell(what=what, ranks=cell.ranks, cases=tuple(cases))


def _brief(value: Any) -> str:
    return " x ".join(map(str, value.values())) if isinstance(value, Mapping) else str(value)


def _relative(cell: PublishedCell, cases: Sequence[Scored]) -> list[Scored]:
    """Ratios of projected times to the reference's, whose value is 1."""
    at = next((i for i, case in enumerate(cell.cases) if case.value == 1), None)
    if at is None or (reference := cases[at].projected) is None:
        why = "the reference of these ratios is not modelled"
        return [replace(case, projected=None, why_not=case.why_not or why) for case in cases]
    relative = []
    for case in cases:
        if case.projected is not None:
            ratio = case.projected_s / reference.step_s
            wide = math.hypot(
                math.log(case.projected.high_s / case.projected.low_s) / 4,
                math.log(reference.high_s / reference.low_s) / 4,
            )
            case = replace(  # noqa: PLW2901
                case,
                projected_s=ratio,
                low_s=ratio / math.exp(2 * wide),
                high_s=ratio * math.exp(2 * wide),
            )
        relative.append(case)
    return relative


_cluster = cache(find)  # hundreds of published cases name a dozen


def _scored(point: Point, cell: PublishedCell, case: PublishedCase, work_of: WorkOf) -> Scored:
    facts, seconds = point.workload | cell.set, math.nan
    try:
        seconds = published_seconds(point, facts, cell, case)
        if not point.complete:
            raise Failure("the point is incomplete")
        found = counterpart(point, cell, case)
        cluster = _cluster(found.cluster)
        projected = _projected(point, facts, found, cluster, work_of)
    except ValidationError as error:
        message = error.errors()[0]["msg"].removeprefix("Value error, ")
        return Scored(label=case.label, published_s=seconds, projected=None, why_not=message)
    except Failure as failure:
        return Scored(label=case.label, published_s=seconds, projected=None, why_not=str(failure))
    return Scored(
        label=case.label,
        published_s=seconds,
        projected=projected,
        low_s=projected.low_s,
        high_s=projected.high_s,
        projected_s=projected.step_s,
    )


def _projected(
    point: Point, facts: dict[str, Any], found: Counterpart, cluster: Cluster, work_of: WorkOf
) -> Cost:
    work = work_of(found.workload, found.strategy, found.ranks)
    if found.kernels_of != found.strategy:
        blocks = work_of(found.workload, found.kernels_of, found.ranks)
        work = replace(work, kernels=blocks.kernels)
    if found.only_backward:
        work = replace(
            work,
            kernels={each: n for each, n in work.kernels.items() if each.phase != "forward"},
            messages={each: n for each, n in work.messages.items() if each.phase != "forward"},
        )
    is_generation = point.metric.per == "generation" and "enois" not in point.metric.time
    own = found.kernel if found.kernel in cluster.device.kernels else ""
    mode = Mode(
        compiled=found.compiled,
        attention_kernel=own,
        fixed_s=_fixed(found.workload, cluster) if is_generation else 0.0,
        fixed_spread=FIXED_SPREAD,
        repeats=steps_of(point, facts),
        outer=found.outer,
        payload=found.payload,
        products=found.products,
        hidden_exchange=found.hidden_exchange,
        calls=1.0 if found.packed else APART,
        merges=MERGES if point.op == "attention" and found.merges else 1.0,
        beyond=ENGINE if point.op == "model" else None,
    )
    return cost(work, cluster, mode)


def _fixed(workload: Workload, cluster: Cluster) -> float:
    """Seconds of a generation beside the steps of the model."""
    rate = cluster.device.products.tflops["bfloat16"](1e3)
    tokens_us = VIDEO_US if workload.tokens > 20_000 else IMAGE_US
    return MODEL_S + workload.tokens * tokens_us / 1e6 * DECODED_AT / rate
