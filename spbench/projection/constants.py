"""Constants of a cluster and its links: where each comes from and how far it may be off."""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Annotated, Literal, Self, final

import numpy as np
from pydantic import Field, model_validator

from spbench.text import grouped
from spbench.workload.block import Frozen, Name, Size
from spbench.workload.traffic import OPS, Op
from spbench.workload.yaml_file import MisfitError

Origin = Literal["spec", "measured", "model", "inferred"]
"""The vendor's number, a measurement, a constant of a published model, or derived here."""
SPREADS: dict[Origin, float] = {"spec": 1.3, "measured": 1.1, "model": 1.5, "inferred": 1.5}
"""Factors between which the truth lies in 95 of 100 cases, where a file does not say."""
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
WIDE = 4.0
"""The ratio of neighbouring sizes of a curve that was measured, whose values are mean rates of what
was timed around each of its sizes."""
LEAST_SPREAD = 1.05
"""The smallest factor that is claimed of a constant: another hour of the same machine differs."""
Part = Annotated[float, Field(ge=0, le=1)]
Numbers = Annotated[tuple[Positive, ...], Field(min_length=1, strict=False)]


class Sourced(Frozen):
    """What every constant says beside its value."""

    source: str = Field(min_length=1)
    """A key of the file's ``sources``, or a sentence."""
    kind: Origin
    spread: Annotated[float, Field(ge=1, lt=100)] | None = None
    """Factor up and down within which the truth lies in 95 of 100 cases; None: by ``kind``."""

    @property
    def factor(self) -> float:
        """The spread, or the usual one of constants of its kind."""
        return SPREADS[self.kind] if self.spread is None else self.spread


@final
class Constant(Sourced):
    """One number."""

    value: Positive


@final
class Curve(Sourced):
    """A number that depends on a size: straight lines over the logarithms of both, flat outside."""

    at: Numbers
    """Sizes, rising; the field that holds the curve names their unit."""
    values: Numbers

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if len(self.at) != len(self.values):
            raise ValueError(
                f"{len(self.at)} sizes in 'at', {len(self.values)} in 'values'; give as many"
            )
        if any(after <= before for before, after in pairwise(self.at)):
            raise ValueError(f"the sizes in 'at' must rise, not {list(self.at)}")
        return self

    def __call__(self, size: float) -> float:
        """The value at ``size``, in the unit of ``values``."""
        return interpolated(self.at, self.values, size)


def interpolated(at: Sequence[float], values: Sequence[float], size: float) -> float:
    """The value at ``size`` between its neighbours in ``at``, by logarithms; flat outside."""
    if size <= at[0]:
        return values[0]
    for i, (low, high) in enumerate(pairwise(at)):
        if size <= high:
            part = math.log(size / low) / math.log(high / low)
            return math.exp((1 - part) * math.log(values[i]) + part * math.log(values[i + 1]))
    return values[-1]


@final
class CollectiveRate(Frozen):
    """Time of one collective: latency of two ranks, and what a rank sends at its rate."""

    latency_us: Constant
    hop_us: Constant | None = None
    """Time for each rank of the group beyond two."""
    shared: Part = 0.0
    """Part of ``hop_us`` that any group pays for each rank beyond two that computes, in the group
    or not, as ranks that share cores do; for each of its own it pays the rest."""
    gb_per_s: Curve
    """Achieved by one rank, of what it sends over this level; ``at``: MB that it sends in all."""
    hidden: Part | None = None
    """Part hidden of what kernels behind a message could hide; None: ``interval.OVERLAP``."""
    hides: Part = 1.0
    """Part of a kernel's time in which a message moves: below 1 where cores move messages."""

    def seconds(self, mb: float) -> float:
        """What a rank that sends so much takes beside the latency: between sizes its time, not its
        rate, lies on a straight line, as where a bucket or a buffer holds the beginning."""
        at, rates = self.gb_per_s.at, self.gb_per_s.values
        if not at[0] < mb < at[-1]:
            return mb / self.gb_per_s(mb) / 1e3
        return float(np.interp(mb, at, np.divide(at, rates))) / 1e3

    def latency_s(self, of_group: int, ranks: int) -> float:
        """Seconds of latency in a group of ``of_group`` ranks, where so many ``ranks`` compute."""
        own, others = max(of_group - 2, 0), max(ranks - 2, 0)
        hops_us = self.hop_us.value if self.hop_us else 0.0
        hops_us *= self.shared * others + (1 - self.shared) * own
        return (self.latency_us.value + hops_us) / 1e6


@final
class Level(Frozen):
    """Links that join blocks of the level before, the innermost those between single ranks."""

    name: Name
    ranks: Size | None = None
    """Ranks that it joins; None: any number."""
    nominal_gb_per_s: Constant | None = None
    """What a rank's link carried one way, by its name, when it was timed; None: not known."""
    collectives: dict[Op, CollectiveRate]
    """Each operation; ``all_reduce`` sends twice what it reduces, and so counts here."""
    shared_gb_per_s: Constant | None = None
    """Sent by all ranks of a block together to other blocks, at most; None: no such limit."""
    scattered: Constant | None = None
    """What is left of ``shared_gb_per_s`` where ranks send to all others at once."""

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if missing := [op for op in OPS if op not in self.collectives]:
            raise MisfitError(
                f"level {self.name!r} has no rate of {', '.join(missing)}; give each operation",
                ("collectives",),
            )
        return self


def constant(value: float, spread: float | None = None) -> Constant:
    """A measured constant."""
    factor = LEAST_SPREAD if spread is None else rounded(spread)
    known = rounded(max(value, 1e-6))
    return Constant(value=known, source="calibrate", kind="measured", spread=factor)


def rounded(value: float) -> float:
    """With five digits, more than any measurement has."""
    return float(f"{value:.5g}")


def curve(points: Iterable[tuple[float, float]]) -> Curve:
    """Mean rates over sizes a factor WIDE apart; their spread is that of single points."""
    known = sorted(points)
    bins = grouped(known, lambda point: round(math.log(point[0], WIDE)))
    means = [
        [statistics.geometric_mean(each) for each in zip(*of_bin, strict=True)]
        for _, of_bin in sorted(bins.items())
    ]
    sizes, rates = (tuple(map(rounded, each)) for each in zip(*means, strict=True))
    made = Curve(at=sizes, values=rates, source="calibrate", kind="measured")
    return made.model_copy(update={"spread": rounded(_scatter(made, known))})


def _scatter(made: Callable[[float], float], points: Sequence[tuple[float, float]]) -> float:
    """The factor up and down that holds 95 of 100 points."""
    off = [math.log(value / made(at)) for at, value in points]
    return max(LEAST_SPREAD, math.exp(2 * math.sqrt(statistics.fmean(x * x for x in off))))
