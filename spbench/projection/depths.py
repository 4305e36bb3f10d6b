"""Which few depths of each stack tell what a step of the whole depth does, and how a step runs.

Few blocks run, of which two periods of a layout are like all that are left out: what these add is
known from the stretches of the step in which they run. That every period adds the same is checked
there, and that nothing else grows with depth in a step of a base, which is less deep.

A stretch of a step begins as forward or backward enters a block, and as forward is over.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product
from typing import Any, Self, final

from torch import Tensor, nn

from spbench.model.transformer import Block
from spbench.projection.dataless import Known, Signature, load_compiler
from spbench.projection.recorder import Recorder
from spbench.projection.storage_log import StorageLog, Stretch
from spbench.projection.unsent import prepared
from spbench.projection.work import Counted, summed
from spbench.strategies.base import Layout, Strategy
from spbench.strategies.describe import courses
from spbench.worker.step import Step
from spbench.workload.case import Device
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

    def extrapolated(self, base: "DryStep", few: "DryStep") -> Counted | None:
        """What the whole depth counts, from ``base`` and ``reduced``; None: it is not affine."""
        total, checked = few.counted, base.counted
        for stack, (period, left) in enumerate(zip(self.periods, self.left_out, strict=True)):
            if left:
                added, again = (_added(few, stack, start, period) for start in (1, 1 + period))
                if added != again:
                    return None
                total = total.plus(added, left)
                checked = checked.plus(added, self._above_base[stack] - left)
        return total if checked == few.counted else None


def _added(step: "DryStep", stack: int, start: int, period: int) -> Counted:
    """What forward and backward of a period of blocks counts."""
    names = product(("forward", "backward"), [stack], range(start, start + period))
    return summed(step.parts[name] for name in names if name in step.parts)


@final
@dataclass(frozen=True, kw_only=True)
class DryStep:
    """A step that has run on tensors without data."""

    parts: Mapping[object, Counted]
    """What each of its stretches counts."""
    weights: list[nn.Parameter]
    stretches: Mapping[object, Stretch]
    """Stretches of its memory; none, if nobody asked for them."""

    @cached_property
    def counted(self) -> Counted:
        return summed(self.parts.values())


@final
@dataclass(frozen=True)
class DryRun:
    """One rank of a strategy, ready to run steps of any workload without data."""

    strategy: Strategy
    ranks: int
    rank: int
    device: Device
    known: dict[Signature, Known]
    """What dry runs as on that device share."""

    def __call__(self, workload: Workload, *, with_memory: bool = False) -> DryStep:
        """Forward and backward of all blocks, without what fills and sums buckets."""
        recorder = Recorder(self.device, self.known)
        recorder.storages = log = StorageLog(recorder) if with_memory else None
        load_compiler()
        with recorder:
            step, given = prepared(workload, self.strategy, self.ranks, self.rank, recorder)
            inputs, cotangent = given
            _mark(step, workload, recorder)
            if log is not None:
                log.hold(step.model.parameters(), "parameters")
                log.hold([*step.model.buffers(), *inputs.tensors, cotangent], "activations")
                log.in_forward = step.train
            with recorder.recording():
                step(inputs, cotangent)
                if log is not None:
                    log.settle([x.grad for x in [*step.model.parameters(), *inputs.leaves]])
        return DryStep(
            parts=recorder.counted(),
            weights=list(step.model.parameters()),
            stretches={} if log is None else log.stretches(),
        )


def _mark(step: Step, workload: Workload, recorder: Recorder) -> None:
    """Has ``recorder`` told where stretches begin."""
    places = [(s, i) for s, part in enumerate(workload.parts) for i in range(part.depth)]
    blocks = [each for each in step.model.modules() if isinstance(each, Block)]
    for place, block in zip(places, blocks, strict=False):
        block.register_forward_pre_hook(partial(_enters, recorder, place))
        block.register_forward_hook(partial(_leaves, recorder, place), always_call=True)
    step.model.register_forward_hook(partial(_ends, recorder))


def _enters(recorder: Recorder, place: tuple[int, int], *_: Any) -> None:
    if recorder.phase == "forward":
        recorder.begin(("forward", *place))
    elif recorder.storages is not None:
        recorder.storages.in_forward = True  # again, under checkpointing


def _leaves(recorder: Recorder, place: tuple[int, int], _: Any, __: Any, out: Any) -> None:
    if recorder.phase != "forward":
        _forward_ends(recorder)
        return
    x = out[0] if out is not None else None
    if isinstance(x, Tensor) and x.requires_grad:
        x.register_hook(lambda _: recorder.begin(("backward", *place)))


def _ends(recorder: Recorder, *_: Any) -> None:
    _forward_ends(recorder)
    recorder.begin("between")


def _forward_ends(recorder: Recorder) -> None:
    """Forward, or the recomputation of a block, is over."""
    if recorder.storages is not None:
        recorder.storages.forward_ends()
