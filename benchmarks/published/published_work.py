"""Published cases with the work that they are here, priced by their clusters, before any draw.

What published engines do besides what a strategy asks for is stated once for all points: here a
fixed time of a generation, and an engine's time beyond its kernels; in ``published_case`` merges in
float32, and queries, keys and values that go apart.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, final

from published_case import Counterpart, counterpart
from published_points import Point, PublishedCase, PublishedCell
from published_scatter import CellErrors, errors_of
from published_terms import published_seconds, steps_of
from pydantic import ValidationError

from spbench.errors import Failure
from spbench.projection.costmodel.cluster_file import find
from spbench.projection.costmodel.constants import Constant
from spbench.projection.costmodel.hardware import Cluster
from spbench.projection.costmodel.scatter import MachineClass, as_constant
from spbench.projection.costmodel.step_time import Cost, Mode, cost, middle_s
from spbench.projection.dryrun.rank_work import WorkOf
from spbench.projection.dryrun.work import Work
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


@final
@dataclass(frozen=True, kw_only=True)
class Priced:
    """The work of one published case, to be given a time with any scatter."""

    work: Work
    cluster: Cluster
    mode: Mode
    name: str
    """The strategy, with what else tells it from its rivals."""

    def cost(self, scatter: float) -> Cost:
        """Its time and interval."""
        own = as_constant(scatter)
        return cost(self.work, self.cluster, self.mode, launches_of=self.name, own=own)


@final
@dataclass(frozen=True, kw_only=True)
class Beside:
    """One published case, and what it is priced by here, or why it is not."""

    label: str
    published_s: float | None
    span_s: tuple[float, float] | None = None
    """The least and most of the source's variants."""
    priced: Priced | None = None
    projected_s: float | None = None
    """Its time here, before anything is drawn."""
    why_not: str = ""


@final
@dataclass(frozen=True, kw_only=True)
class BesideCell:
    """A published cell and its cases."""

    cell: PublishedCell
    machine: str
    """The name of its class of machines."""
    cases: Sequence[Beside]
    reference: int | None
    """The place of the case to which ratios are; None: times were published."""

    @property
    def errors(self) -> CellErrors:
        """What its modelled cases are off by."""
        modelled = (case for case in self.cases if case.priced)
        return errors_of((case.label, case.published_s, case.projected_s) for case in modelled)


@final
@dataclass(frozen=True, kw_only=True)
class BesidePoint:
    """A point and its cells, before anything is drawn."""

    point: Point
    cells: Sequence[BesideCell]


def weigh(point: Point, work_of: WorkOf) -> BesidePoint:
    """A point's cases with their work and their times, before anything is drawn."""
    return BesidePoint(
        point=point, cells=[_beside_cell(point, cell, work_of) for cell in point.cells]
    )


def _machine(point: Point, cell: PublishedCell) -> str:
    hardware = point.hardware
    is_one_node = (
        hardware.between_nodes is None
        if hardware.gpus_per_node is None
        else cell.ranks <= hardware.gpus_per_node
    )
    return MachineClass(link_of(point), is_one_node).name


def link_of(point: Point) -> str:
    """What joins the GPUs of a point's nodes; a rack of NVLink is NVLink."""
    link = point.hardware.link
    return "nvlink" if link in ("nvlink", "nvl72") else link


def _beside_cell(point: Point, cell: PublishedCell, work_of: WorkOf) -> BesideCell:
    cases = [_beside(point, cell, case, work_of) for case in cell.cases]
    reference = None
    if point.metric.name == "ratio":
        ones = (place for place, case in enumerate(cell.cases) if case.value == 1)
        reference = next(ones, None)
        if reference is None or cases[reference].priced is None:
            why = "the reference of these ratios is not modelled"
            cases = [replace(x, priced=None, why_not=x.why_not or why) for x in cases]
    return BesideCell(cell=cell, machine=_machine(point, cell), cases=cases, reference=reference)


_cluster = cache(find)  # hundreds of published cases name a dozen


def _beside(point: Point, cell: PublishedCell, case: PublishedCase, work_of: WorkOf) -> Beside:
    facts, beside = point.workload | cell.set, Beside(label=case.label, published_s=None)
    try:
        seconds, *span = (
            published_seconds(point, facts, cell, case, value) for value in (case.value, *case.span)
        )
        beside = replace(beside, published_s=seconds, span_s=(min(span), max(span)))
        if not point.complete:
            raise Failure("the point is incomplete")
        found = counterpart(point, cell, case)
        priced = _priced(point, facts, found, _cluster(found.cluster), work_of, case.label)
        took_s = middle_s(priced.work, priced.cluster, priced.mode)
        return replace(beside, priced=priced, projected_s=took_s)
    except ValidationError as error:
        why = error.errors()[0]["msg"].removeprefix("Value error, ")
    except Failure as failure:
        why = str(failure)
    return replace(beside, why_not=why)


def _priced(
    point: Point,
    facts: dict[str, Any],
    found: Counterpart,
    cluster: Cluster,
    work_of: WorkOf,
    name: str,
) -> Priced:
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
    return Priced(work=work, cluster=cluster, mode=mode, name=name)


def _fixed(workload: Workload, cluster: Cluster) -> float:
    """Seconds of a generation beside the steps of the model."""
    rate = cluster.device.products.tflops["bfloat16"](1e3)
    tokens_us = VIDEO_US if workload.tokens > 20_000 else IMAGE_US
    return MODEL_S + workload.tokens * tokens_us / 1e6 * DECODED_AT / rate
