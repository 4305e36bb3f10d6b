"""The stages of a pipeline: which blocks each has, and in how many parts samples pass through them.

Ranks of a stage hold its blocks alone. Microbatches follow one another through the stages by the
schedule 1F1B (Narayanan et al., SC 2021): while one is in a stage, the next is in the one before.
Of P stages and m microbatches each stage waits for P - 1 of them as the pipeline fills and empties:

    2 stages, 3 microbatches    F0 F1 B0 F2 B1 .. B2
                                .. F0 B0 F1 B1 F2 B2        bubble (P - 1) / m of what is computed
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from typing import NamedTuple, Self, final

from spbench.workload.flops import block_flops
from spbench.workload.workload import Workload


class Stage(NamedTuple):
    """A part of a model."""

    blocks: range
    """Its blocks, by their numbers in the whole stack."""
    is_first: bool = True
    """Whether it has what comes before the first block."""
    is_last: bool = True
    """Whether it has what comes behind the last."""

    @classmethod
    def whole(cls, workload: Workload) -> "Stage":
        """All of the model."""
        return cls(range(workload.blocks))


@final
@dataclass(frozen=True)
class Stages:
    """The parts of a model, and the number of microbatches that pass through them."""

    parts: tuple[Stage, ...]
    microbatches: int

    @classmethod
    def of(cls, workload: Workload, stages: int, microbatches: int) -> Self:
        """Blocks in order, so that the stage with the most operations has as few as can be."""
        blocks = enumerate(balanced(block_flops(workload), stages))
        parts = (Stage(each, place == 0, place == stages - 1) for place, each in blocks)
        return cls(tuple(parts), microbatches)

    @property
    def count(self) -> int:
        """Number of stages."""
        return len(self.parts)

    @property
    def bubble(self) -> Fraction:
        """What a stage waits for others, as a part of what it computes, where all are alike."""
        return Fraction(self.count - 1, self.microbatches)


def balanced(costs: Sequence[int], parts: int) -> list[range]:
    """Consecutive places in so many parts, the most expensive one as cheap as can be.

    The last parts are filled first; of fewer costs than parts the first parts are empty.

    >>> balanced([1, 1, 1, 2], 2)
    [range(0, 2), range(2, 4)]
    """
    sums = [0, *accumulate(costs)]
    # best[n]: the least most expensive part of the first n places in as many parts as there are so
    # far, and where the last of these begins.
    best = [(total, 0) for total in sums]
    begins = [best]
    for _ in range(parts - 1):
        best = [
            min((max(best[start][0], sums[n] - sums[start]), start) for start in range(n + 1))
            for n in range(len(sums))
        ]
        begins.append(best)
    end, found = len(costs), []
    for of_parts in reversed(begins):
        start = of_parts[end][1]
        found.append(range(start, end))
        end = start
    return found[::-1]
