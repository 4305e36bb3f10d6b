"""Constants of a cluster: numbers that say where they come from and how far they may be off."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Literal, Self, final

from pydantic import Field, model_validator

from spbench.workload.block import Frozen

Origin = Literal["spec", "measured", "model", "inferred"]
"""The vendor's number, a measurement, a constant of a published model, or derived here."""
SPREADS: dict[Origin, float] = {"spec": 1.3, "measured": 1.1, "model": 1.5, "inferred": 1.5}
"""Factors between which the truth lies in 95 of 100 cases, where a file does not say."""
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
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
