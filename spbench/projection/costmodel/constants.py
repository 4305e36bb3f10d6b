"""Constants of a cluster and its links: where each comes from and how far it may be off."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import pairwise
from typing import Annotated, Literal, Self, final

import numpy as np
from numpy.typing import NDArray
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
    shape: str = ""
    """The family's shape by which one figure of a data sheet became its sizes; blank: a table."""

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


def transfer_s(gb_per_s: Curve, mb: float) -> float:
    """Seconds of so many MB at rates by size: between sizes the time, not the rate, lies on a
    straight line, as where a bucket or a buffer holds the beginning."""
    at, rates = gb_per_s.at, gb_per_s.values
    if not at[0] < mb < at[-1]:
        return mb / gb_per_s(mb) / 1e3
    return float(np.interp(mb, at, np.divide(at, rates))) / 1e3


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
        """What a rank that sends so much takes beside the latency."""
        return transfer_s(self.gb_per_s, mb)

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
    collectives: dict[Op, CollectiveRate]
    """Each operation; ``all_reduce`` sends twice what it reduces, and so counts here."""
    shared_gb_per_s: Constant | None = None
    """Sent by all ranks of a block together to other blocks, at most; None: no such limit."""
    scattered: Constant | None = None
    """What is left of ``shared_gb_per_s`` where ranks send to all others at once."""
    to_each: bool = False
    """Whether a rank has a link of its own to each other one, without a switch: a smaller group has
    fewer of them, a shift goes over one. Rates are of a group of all ranks, a shift's of two."""

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


# What is drawn: for each constant that bounds a time one random number, or what several share.
#
# A constant is known by its name within its cluster, ``socket.all_to_all.gb_per_s`` for one, never
# by its value or the text of its source: two links of equal rates are off each by its own, and a
# source that is worded otherwise moves no answer. What is off together a cluster's file says, with
# the reason (``drawn_together``), since what strategies share drops out of their ratio.
#
#     log of a factor = log of the spread / 1.96 x (sum over groups of sqrt(part) x the group's
# number
#                                                   + sqrt(what the parts leave) x its own number)

DRAWS = 2000
Draws = NDArray[np.float64]


@final
class Together(Frozen):
    """Constants of a cluster that are off together, in part or in all."""

    constants: Annotated[tuple[str, ...], Field(min_length=1, strict=False)]
    """Their names; ``*`` stands for any part: ``node.*.gb_per_s`` for all rates of a level."""
    part: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Part of the variance of each constant's logarithm that is one number for all of them."""
    why: str = Field(min_length=1)
    """What they have in common."""

    def holds(self, name: str) -> bool:
        """Whether a constant of that name is one of them."""
        return any(fnmatchcase(name, pattern) for pattern in self.constants)


@final
@dataclass(frozen=True)
class Doubt:
    """How far a constant may be off: a factor up and down that holds 95 of 100 cases."""

    name: str
    """Where the constant stands in its cluster, or what else it bounds."""
    factor: float

    @classmethod
    def of(cls, name: str, constant: Sourced) -> Doubt:
        """The doubt about the constant of that name."""
        return cls(name, constant.factor)


@final
@dataclass(frozen=True, kw_only=True)
class Drawing:
    """How the constants of one machine are drawn."""

    machine: str
    """Two machines have nothing in common; one machine at two rates of its links has."""
    together: Sequence[Together] = ()

    def factors(self, doubt: Doubt) -> Draws:
        """What the constant is multiplied by in each draw: the same wherever it occurs."""
        whole = sum(
            math.sqrt(part) * _normal(f"{self.machine} {key}")
            for key, part in self._numbers(doubt.name)
        )
        factors: Draws = np.exp(whole * math.log(doubt.factor) / 1.96)
        return factors

    def _numbers(self, name: str) -> Iterator[tuple[str, float]]:
        """The random numbers of a constant, each with its part of the variance."""
        groups = [group for group in self.together if group.holds(name)]
        for group in groups:
            # Its patterns, not its reason: to word that otherwise moves no answer either.
            yield f"together {' '.join(group.constants)}", group.part
        yield name, max(1.0 - sum(group.part for group in groups), 0.0)


@lru_cache(maxsize=10_000)
def _normal(key: str) -> Draws:
    """Standard normal numbers that belong to a text."""
    return np.random.default_rng([*key.encode()]).standard_normal(DRAWS)
