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
from functools import partial
from typing import Any, Literal, final

from torch import Tensor, nn

from spbench.comm.gradient_buckets import BUCKET_BYTES
from spbench.model.transformer import Block
from spbench.projection.storage_log import Level, StorageLog, Stretch
from spbench.projection.unsent import prepared
from spbench.projection.work import Memory
from spbench.strategies.base import Strategy
from spbench.strategies.courses import courses
from spbench.worker.memory import rounded
from spbench.worker.step import Step
from spbench.workload.case import Device
from spbench.workload.workload import Workload

Way = Literal["forward", "backward"]
MOMENTS, COUNT_BYTES = 2, 4
"""What AdamW keeps of a weight: tensors of its size, and the bytes of its count of steps."""


WHOLE_BYTES, WHOLE_LAUNCHES = 200 * BUCKET_BYTES, 10_000
"""Weights, and kernels of a step, below which all blocks run: where a bucket more or less would
make over half a percent, and a step takes about a second."""


def memory(
    workload: Workload,
    strategy: Strategy,
    ranks: int,
    rank: int,
    weights: Sequence[nn.Parameter],
    launches: int,
    device: Device,
) -> Memory:
    """Peak bytes of a rank's step of so many ``launches``. ``weights``: those that it holds."""
    few = FewBlocks.of(workload, strategy, ranks)
    if launches < WHOLE_LAUNCHES and sum(each.nbytes for each in weights) < WHOLE_BYTES:
        few = FewBlocks(workload, few.periods, (0,) * len(few.periods))
    stretches = _stretches(few.reduced, strategy, ranks, rank, device)
    peak = max(few.peaks(stretches), key=lambda level: level.total())
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


def _stretches(
    workload: Workload,
    strategy: Strategy,
    ranks: int,
    rank: int,
    device: Device,
) -> dict[object, Stretch]:
    """Every stretch of a step that runs whole."""
    log = StorageLog(device)
    with log:
        step, (inputs, cotangent) = prepared(workload, strategy, ranks, rank, log)
        log.hold(step.model.parameters(), "parameters")
        log.hold([*step.model.buffers(), *inputs.tensors, cotangent], "activations")
        _mark(step, workload, log)
        with log.recording():
            log.in_forward = step.train
            step(inputs, cotangent)
            log.settle([x.grad for x in step.model.parameters()])
            log.settle([x.grad for x in inputs.leaves])
    return log.stretches()


def _mark(step: Step, workload: Workload, log: StorageLog) -> None:
    """Has the log told where stretches begin."""
    places = [(s, i) for s, part in enumerate(workload.parts) for i in range(part.depth)]
    blocks = [each for each in step.model.modules() if isinstance(each, Block)]
    for place, block in zip(places, blocks, strict=False):
        block.register_forward_pre_hook(partial(_enters, log, place))
        block.register_forward_hook(partial(_leaves, log, place), always_call=True)
    step.model.register_forward_hook(partial(_ends, log))


def _enters(log: StorageLog, place: tuple[int, int], *_: Any) -> None:
    if log.phase == "forward":
        log.begin(("forward", *place))
    else:
        log.in_forward = True  # again, under checkpointing


def _leaves(log: StorageLog, place: tuple[int, int], _: Any, __: Any, out: Any) -> None:
    if log.phase != "forward":
        log.forward_ends()
        return
    x = out[0] if out is not None else None
    if isinstance(x, Tensor) and x.requires_grad:
        x.register_hook(lambda _: log.begin(("backward", *place)))


def _ends(log: StorageLog, *_: Any) -> None:
    log.forward_ends()
    log.begin("between")
