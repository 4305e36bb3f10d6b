"""What is drawn: for each constant that bounds a time one random number, or what several share.

A constant is known by its name within its cluster, ``socket.all_to_all.gb_per_s`` for one, never by
its value or the text of its source: two links of equal rates are off each by its own, and a source
that is worded otherwise moves no answer. What is off together a cluster's file says, with the
reason (``drawn_together``), since what strategies share drops out of their ratio.

    log of a factor = log of the spread / 1.96 x (sum over groups of sqrt(part) x the group's number
                                                  + sqrt(what the parts leave) x its own number)
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Annotated, final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from spbench.projection.constants import Sourced
from spbench.workload.block import Frozen

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
    def of(cls, name: str, constant: Sourced) -> "Doubt":
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
