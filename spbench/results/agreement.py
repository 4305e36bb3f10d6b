"""How far two steps of a workload are apart, by fingerprints of their tensors.

A fingerprint is a few numbers of each tensor: its elements, its squared norm, and its projections
on random signs. For a difference d of two tensors the mean of its squared projections is |d|^2 on
average, so that two steps can be compared whose tensors never met: on other ranks, by another
strategy, in another launch. It is an estimate: with four projections it may be off by a factor of
two or three, which is nothing beside what lies between rounding and a defect. Norms differ by at
most |d|, so what they say is never too much.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Fingerprint = dict[str, list[float]]
"""By name of a tensor: its elements, its squared norm, its projections."""

FIXED_TOLERANCE = {"float64": 1e-9, "float32": 1e-4}
"""Relative error that a tensor may have against one device in the same dtype."""
OWN_ERROR_FACTOR = 4.0
"""How much larger a strategy's error in 16 bits may be than one device's, both against float32."""
TOLERANCE = FIXED_TOLERANCE | {"bfloat16": 0.25, "float16": 0.1}
"""Relative difference up to which two steps of a dtype are the same, by whichever strategy."""
EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10}
OUTPUT = "output"
NOISE_FACTOR = 32.0
"""How much further a tensor may be in a later step than in a repeated one. Both are estimates from
four projections: one in 300,000 is 32 times another, and a launch makes thousands."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """How far a tensor of one step is from that of another, relative to its norm."""

    name: str
    relative: float
    tolerance: float

    @property
    def excess(self) -> float:
        """Above 1: too far. NaN is further than anything."""
        return math.inf if math.isnan(self.relative) else self.relative / self.tolerance

    def in_words(self, differs: str) -> str:
        """How far it is, where ``differs`` says when, and from what."""
        by = f"{self.relative:.2g} (relative; tolerance {self.tolerance:.2g})"
        return f"{self.name} {differs} by {by}"


def farthest(
    got: Fingerprint, wanted: Fingerprint, tolerances: Mapping[str, float], floor: float = 0.0
) -> Difference:
    """The tensor that is nearest to its tolerance or furthest beyond it."""
    if got.keys() != wanted.keys():
        name = next(iter(got.keys() ^ wanted.keys()))
        return Difference(name=name, relative=math.inf, tolerance=min(tolerances.values()))
    differences = [
        Difference(
            name=name,
            relative=relative_difference(numbers, wanted[name], floor),
            tolerance=tolerances[name],
        )
        for name, numbers in got.items()
    ]
    return max(differences, key=lambda difference: difference.excess)


def relative_difference(got: Sequence[float], wanted: Sequence[float], floor: float) -> float:
    """An estimate of |got - wanted| / |wanted|; ``floor``: the least root mean square of an
    element that the norm of ``wanted`` is taken for."""
    elements, squared_norm, *projections = wanted
    if not math.isfinite(sum(got)) or got[0] != elements:
        return math.inf
    apart = [a - b for a, b in zip(got[2:], projections, strict=True)]
    estimate = math.hypot(*apart) / math.sqrt(len(apart))
    size = math.sqrt(squared_norm)
    difference = max(estimate, abs(math.sqrt(got[1]) - size))
    if difference == 0.0:
        return 0.0
    size = max(size, floor * math.sqrt(elements))
    return difference / size if size else math.inf


def noise_floor(fingerprint: Fingerprint, dtype: str) -> float:
    """Below this root mean square a gradient is nothing but rounding: that of a query which only
    one key answers is zero, whatever its digits say."""
    return 10 * EPS[dtype] / TOLERANCE[dtype] * _typical_gradient(fingerprint)


def _typical_gradient(fingerprint: Fingerprint) -> float:
    gradients = [n for name, n in fingerprint.items() if not name.startswith(OUTPUT)]
    return statistics.median([math.sqrt(n[1] / n[0]) for n in gradients] or [0.0])


@dataclass(frozen=True, kw_only=True)
class Repeats:
    """How near steps in 16 bits are to each other that one strategy computes from the same inputs.

    Each value is rounded as before, so that nothing differs but for the order in which a kernel
    adds: of a GPU's attention backward, where the sum's last digit, and what is computed from it,
    is then another one each time. How far that leads, one repetition tells.
    """

    tolerances: dict[str, float]
    floor: float

    @classmethod
    def of(cls, first: Fingerprint, again: Fingerprint, dtype: str) -> "Repeats":
        """From two steps on the same inputs, before anything is timed."""
        floor = EPS[dtype] * _typical_gradient(first)
        noise = {name: relative_difference(again[name], first[name], floor) for name in first}
        tolerances = {
            name: max(_least(name, dtype), NOISE_FACTOR * own) for name, own in noise.items()
        }
        return cls(tolerances=tolerances, floor=floor)

    def farthest(self, got: Fingerprint, first: Fingerprint) -> Difference:
        """``first``: the first step on the same inputs, which may be other than those above."""
        return farthest(got, first, self.tolerances, self.floor)


def _least(name: str, dtype: str) -> float:
    """What a difference may be where a repeated step had none. No kernel adds in another order on
    the way to the output; a gradient is given one rounding, as an order that is seldom another one
    may have come out the same by luck."""
    return FIXED_TOLERANCE["float32"] if name == OUTPUT else EPS[dtype] / 2
