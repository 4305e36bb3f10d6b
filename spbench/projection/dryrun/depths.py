"""Which few depths of each stack tell what a step of the whole depth does, and how a step runs.

Few blocks run, of which two periods of a layout are like all that are left out: what these add is
known from the stretches of the step in which they run. That every period adds the same is checked
there, and that nothing else grows with depth in a step of a base, which is less deep.

A stretch of a step begins as forward or backward enters a block, and as forward is over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from typing import Literal, Self, final

from torch import nn

from spbench.comm.gradient_buckets import BUCKET_BYTES
from spbench.layers.linear import another
from spbench.projection.dryrun.dry_step import DryStep
from spbench.projection.dryrun.storage_log import Level, Stretch
from spbench.projection.dryrun.work import Counted, Memory, summed
from spbench.strategies.base import Layout
from spbench.strategies.describe import courses
from spbench.worker.memory import rounded
from spbench.workload.workload import Workload


@final
@dataclass(frozen=True)
class FewBlocks:
    """A workload, and how often each period of its blocks is left out, stack by stack."""

    whole: Workload
    periods: tuple[int, ...]
    """Blocks after which the layout of each stack repeats."""
    left_out: tuple[int, ...]
    """Periods of each stack that do not run."""

    @classmethod
    def of(cls, workload: Workload, layout: Layout) -> Self:
        """The first block of each stack, two periods, the last, and what is no whole period."""
        periods = [(course.part.depth, course.period) for course in courses(layout, workload)]
        left = tuple(max(0, depth - 2 - 2 * period) // period for depth, period in periods)
        return cls(workload, tuple(period for _, period in periods), left)

    @property
    def all(self) -> Self:
        """All blocks, none of which is left out."""
        return replace(self, left_out=(0,) * len(self.periods))

    @property
    def reduced(self) -> Workload:
        """The workload without the blocks that are left out."""
        return self._without(self.left_out)

    @property
    def base(self) -> Workload:
        """The least blocks of each stack that is cut short."""
        return self._without(self._above_base)

    @property
    def growth(self) -> float:
        """How many times as deep as the base the whole is, of the stack that grows the most."""
        pairs = zip(self.whole.parts, self.base.parts, strict=True)
        return max(part.depth / base.depth for part, base in pairs)

    @property
    def _above_base(self) -> tuple[int, ...]:
        """Periods of each stack that the base does without, which keeps one block at least."""
        parts = zip(self.whole.parts, self.periods, self.left_out, strict=True)
        return tuple((part.depth - 1) // period * (left > 0) for part, period, left in parts)

    def _without(self, periods: tuple[int, ...]) -> Workload:
        parts = zip(self.whole.parts, self.periods, periods, strict=True)
        return self.whole.with_depths([part.depth - n * each for part, n, each in parts])

    def weights(self, few: DryStep) -> list[nn.Parameter]:
        """The parameters of the whole depth, from a step of ``reduced``."""
        whole, blocks = list(few.weights), iter(few.blocks)
        stacks = [list(islice(blocks, part.depth)) for part in self.reduced.parts]
        # The last stack first: what goes in moves what comes after it.
        cut = zip(stacks, self.periods, self.left_out, strict=True)
        for stack, period, left in reversed(list(cut)):
            if left:
                begin, end = stack[1].start, stack[period].stop
                one = few.weights[begin:end]
                whole[end:end] = [another(weight) for _ in range(left) for weight in one]
        return whole

    def extrapolated(self, base: DryStep, few: DryStep) -> Counted | None:
        """What the whole depth counts, from ``base`` and ``reduced``; None: it is not affine."""
        total, checked = few.counted, base.counted
        for stack, (period, left) in enumerate(zip(self.periods, self.left_out, strict=True)):
            if left:
                added, again = (
                    _added_by_period(few, stack, start, period) for start in (1, 1 + period)
                )
                if added != again:
                    return None
                total = total.plus(added, left)
                checked = checked.plus(added, self._above_base[stack] - left)
        return total if checked == few.counted else None


def _added_by_period(step: DryStep, stack: int, start: int, period: int) -> Counted:
    """What forward and backward of a period of blocks counts."""
    names = product(("forward", "backward"), [stack], range(start, start + period))
    return summed(step.parts[name] for name in names if name in step.parts)


# Peak memory of one rank's step, by what holds it; of a deep stack a few blocks run.
#
# A period of blocks adds the same to what is alive, wherever it is: what forward leaves for
# backward, and gradients in place of that. So each stretch of the step, forward or backward of a
# block, has its peak in the whole stack where the blocks that were left out have added theirs; the
# largest of these is the step's. Buckets of gradients fill up at other blocks in another depth:
# the peak may be off by what is in a bucket (25 MiB), so that models of which this is much run
# whole.

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
        for stack, (kept, gradients) in enumerate(grown):
            added = _blocks_before(name, stack, few.periods[stack])
            for part, size in ((kept, added[0]), (gradients, added[1])):
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


def _blocks_before(name: object, stack: int, period: int) -> tuple[int, int]:
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
