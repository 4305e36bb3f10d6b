"""Peak memory of one rank's step, by what holds it; of a deep stack a few blocks run.

A period of blocks adds the same to what is alive, wherever it is: what forward leaves for backward,
and gradients in place of that. So each stretch of the step, forward or backward of a block, has its
peak in the whole stack where the blocks that were left out have added theirs; the largest of these
is the step's. Buckets of gradients fill up at other blocks in another depth: the peak may be off by
what is in a bucket (25 MiB), so that models of which this is much run whole.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from torch import nn

from spbench.comm.gradient_buckets import BUCKET_BYTES
from spbench.projection.depths import DryStep, FewBlocks
from spbench.projection.storage_log import Level, Stretch
from spbench.projection.work import Memory
from spbench.worker.memory import rounded

Way = Literal["forward", "backward"]
MOMENTS, COUNT_BYTES = 2, 4
"""What AdamW keeps of a weight: tensors of its size, and the bytes of its count of steps."""


WHOLE_BYTES, WHOLE_LAUNCHES = 200 * BUCKET_BYTES, 10_000
"""Weights, and kernels of a step, below which all blocks run: where a bucket more or less would
make over half a percent, and a step takes about a second."""


def runs_whole(launches: float, weights: Sequence[nn.Parameter], growth: float = 1) -> bool:
    """Whether all blocks run of a step of ``growth`` times these launches and weights."""
    size = sum(each.nbytes for each in weights)
    return growth * launches < WHOLE_LAUNCHES and growth * size < WHOLE_BYTES


def memory(few: FewBlocks, step: DryStep, weights: Sequence[nn.Parameter]) -> Memory:
    """Peak bytes of the whole depth, whose ``weights`` a rank holds, from a ``step`` of few."""
    peak = max(_peaks(few, step.stretches), key=lambda level: level.total())
    kept = [rounded(each.nbytes) for each in weights]
    optimizer = 0
    if few.whole.optimizer == "adamw":
        optimizer = MOMENTS * sum(kept) + len(kept) * rounded(COUNT_BYTES)
    return Memory(
        parameters=sum(kept),
        gradients=peak["gradients"],
        optimizer=optimizer,
        activations=peak["activations"],
        temporaries=peak["temporaries"],
    )


def _peaks(few: FewBlocks, stretches: Mapping[object, Stretch]) -> Iterator[Level]:
    """What is alive at the peak of each stretch of the whole depth, but weights."""
    grown = [_grown(few, stretches, stack) for stack in range(len(few.periods))]
    for name, stretch in stretches.items():
        level = Level(stretch.peak)
        for stack, (kept, summed) in enumerate(grown):
            added = _added(name, stack, few.periods[stack])
            for part, size in ((kept, added[0]), (summed, added[1])):
                for each in part:
                    level[each] += few.left_out[stack] * size * part[each]
        del level["parameters"]
        yield level


def _grown(few: FewBlocks, stretches: Mapping[object, Stretch], stack: int) -> tuple[Level, Level]:
    """What forward and backward of a period add to what is alive."""
    if not few.left_out[stack]:
        return Counter(), Counter()
    period = few.periods[stack]

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
