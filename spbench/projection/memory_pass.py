"""Peak memory of one rank's step, by what holds it; of a deep stack a few blocks run.

A period of blocks adds the same to what is alive, wherever it is: what forward leaves for backward,
and gradients in place of that. So each stretch of the step, forward or backward of a block, has its
peak in the whole stack where the blocks that were left out have added theirs; the largest of these
is the step's. Buckets of gradients fill up at other blocks in another depth: the peak may be off by
what is in a bucket (25 MiB), so that models of which this is much run whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, final

from torch import nn

from spbench.comm.gradient_buckets import BUCKET_BYTES
from spbench.projection.depths import DryRun, DryStep
from spbench.projection.storage_log import Level, Stretch
from spbench.projection.work import Memory
from spbench.strategies.base import Strategy
from spbench.strategies.courses import courses
from spbench.worker.memory import rounded
from spbench.workload.workload import Workload

Way = Literal["forward", "backward"]
MOMENTS, COUNT_BYTES = 2, 4
"""What AdamW keeps of a weight: tensors of its size, and the bytes of its count of steps."""


WHOLE_BYTES, WHOLE_LAUNCHES = 200 * BUCKET_BYTES, 10_000
"""Weights, and kernels of a step, below which all blocks run: where a bucket more or less would
make over half a percent, and a step takes about a second."""


def runs_whole(base: DryStep, growth: float) -> bool:
    """Whether all blocks run of a step that is ``growth`` times as deep as the base, at most."""
    launches = base.counted.kernels.total() + len(base.weights)
    return _runs_whole(round(growth * launches) + 1, growth * _bytes(base.weights))


def _runs_whole(launches: int, weights_bytes: float) -> bool:
    return launches < WHOLE_LAUNCHES and weights_bytes < WHOLE_BYTES


def _bytes(weights: Sequence[nn.Parameter]) -> int:
    return sum(each.nbytes for each in weights)


def memory(workload: Workload, whole: DryStep) -> Memory:
    """Peak bytes of a rank's step, from one of all blocks."""
    peak = max((each.peak for each in whole.stretches.values()), key=lambda level: level.total())
    return _held(workload, peak, whole.weights)


def memory_of_few(
    workload: Workload,
    strategy: Strategy,
    ranks: int,
    weights: Sequence[nn.Parameter],
    launches: int,
    run: DryRun,
) -> Memory:
    """Peak bytes of a rank's step of so many ``launches``. ``weights``: those that it holds."""
    few = FewBlocks.of(workload, strategy, ranks)
    if _runs_whole(launches, _bytes(weights)):
        few = FewBlocks(workload, few.periods, (0,) * len(few.periods))
    peak = max(
        few.peaks(run(few.reduced, with_memory=True).stretches), key=lambda level: level.total()
    )
    return _held(workload, peak, weights)


def _held(workload: Workload, peak: Level, weights: Sequence[nn.Parameter]) -> Memory:
    kept = [rounded(each.nbytes) for each in weights]
    optimizer = 0
    if workload.optimizer == "adamw":
        optimizer = MOMENTS * sum(kept) + len(kept) * rounded(COUNT_BYTES)
    return Memory(
        parameters=sum(kept),
        gradients=peak["gradients"],
        optimizer=optimizer,
        activations=peak["activations"],
        temporaries=peak["temporaries"],
    )


@final
@dataclass(frozen=True)
class FewBlocks:
    """A workload, its form with few blocks, and the periods of blocks that this leaves out."""

    reduced: Workload
    periods: tuple[int, ...]
    """Blocks after which the layout of each stack repeats."""
    left_out: tuple[int, ...]
    """Periods of each stack that do not run."""

    @classmethod
    def of(cls, workload: Workload, strategy: Strategy, ranks: int) -> FewBlocks:
        """The first block of each stack, two periods, the last, and what is no whole period."""
        layout = strategy.layout(workload, ranks)
        periods = tuple(course.period for course in courses(layout, workload))
        pairs = list(zip(workload.parts, periods, strict=True))
        left = tuple(max(0, part.depth - 2 - 2 * period) // period for part, period in pairs)
        parts = [
            part.model_copy(update={"depth": part.depth - period * times})
            for (part, period), times in zip(pairs, left, strict=True)
        ]
        return cls(workload.with_parts(parts), periods, left)

    def peaks(self, stretches: Mapping[object, Stretch]) -> Iterator[Level]:
        """What is alive at the peak of each stretch of the whole depth, but weights."""
        grown = [self._grown(stretches, stack) for stack in range(len(self.periods))]
        for name, stretch in stretches.items():
            level = Level(stretch.peak)
            for stack, (kept, summed) in enumerate(grown):
                added = _added(name, stack, self.periods[stack])
                for part, size in ((kept, added[0]), (summed, added[1])):
                    for each in part:
                        level[each] += self.left_out[stack] * size * part[each]
            del level["parameters"]
            yield level

    def _grown(self, stretches: Mapping[object, Stretch], stack: int) -> tuple[Level, Level]:
        """What forward and backward of a period add to what is alive."""
        if not self.left_out[stack]:
            return Counter(), Counter()
        period = self.periods[stack]

        def between(way: Way, before: int, after: int) -> Level:
            first, then = (stretches.get((way, stack, i)) for i in (before, after))
            grown = Level(then.start if then else {})
            grown.subtract(first.start if first else {})
            return grown

        return between("forward", 1, 1 + period), between("backward", 2 * period, period)


def _added(name: object, stack: int, period: int) -> tuple[int, int]:
    """Whether forward, and backward, of the blocks left out of ``stack`` come before a stretch.

    They are those between the first two periods and the rest."""
    match name:
        case ("forward", int(own), int(block)):
            return int(stack < own or (stack == own and block > period)), 0
        case ("backward", int(own), int(block)):
            return 1, int(stack > own or (stack == own and block <= period))
        case "between":
            return 1, 0
    return 0, 0
