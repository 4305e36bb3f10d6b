"""Which few depths of each stack tell what a step of the whole depth does, and how a step runs.

A base, then each stack deeper by a period of its layout, which tells what a period adds, then all
stacks deeper by two: that what a period adds is always the same is checked there.

A stretch of a step's memory begins as forward enters a block, as forward is over, and as backward
enters a block.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Self, final

from torch import Tensor, nn

from spbench.model.transformer import Block
from spbench.projection.dataless import Known, Signature
from spbench.projection.recorder import Recorder
from spbench.projection.storage_log import StorageLog, Stretch
from spbench.projection.unsent import prepared
from spbench.projection.work import Counted
from spbench.strategies.base import Layout, Strategy
from spbench.strategies.courses import courses
from spbench.worker.step import Step
from spbench.workload.case import Device
from spbench.workload.workload import Workload

BASE = 1
"""Blocks of a stack at least."""


@final
@dataclass(frozen=True)
class Depths:
    """Few depths of a workload's stacks, one for each stack."""

    whole: Workload
    periods: tuple[int, ...]
    """Blocks after which the layout of each stack repeats."""

    @classmethod
    def of(cls, workload: Workload, layout: Layout) -> Self:
        return cls(workload, tuple(course.period for course in courses(layout, workload)))

    @cached_property
    def base(self) -> tuple[int, ...]:
        """The depth of each stack that runs; its own where three depths would not save any."""
        return tuple(
            part.depth if part.depth <= BASE + 2 * period else _base(part.depth, period)
            for part, period in zip(self.whole.parts, self.periods, strict=True)
        )

    @property
    def base_workload(self) -> Workload:
        """The workload at the base; itself, if that is its own depth."""
        return self.workload(self.base) if self.growth > 1 else self.whole

    @property
    def growth(self) -> float:
        """How many times as deep as the base the whole is, of the stack that grows the most."""
        return max(
            part.depth / base for part, base in zip(self.whole.parts, self.base, strict=True)
        )

    @cached_property
    def _steps(self) -> dict[tuple[int, ...], int]:
        """The deeper depths, and how often what each adds occurs."""
        steps = {}
        for i, (part, period) in enumerate(zip(self.whole.parts, self.periods, strict=True)):
            if part.depth > self.base[i]:
                deeper = (*self.base[:i], self.base[i] + period, *self.base[i + 1 :])
                steps[deeper] = (part.depth - self.base[i]) // period
        return steps

    @property
    def _check(self) -> tuple[int, ...]:
        parts = zip(self.whole.parts, self.base, self.periods, strict=True)
        return tuple(base + 2 * period * (part.depth > base) for part, base, period in parts)

    @property
    def runs(self) -> list[tuple[int, ...]]:
        """All depths that are to run."""
        return list(dict.fromkeys([self.base, *self._steps, self._check]))

    def workload(self, depths: tuple[int, ...]) -> Workload:
        """The workload at these depths."""
        parts = zip(self.whole.parts, depths, strict=True)
        return self.whole.with_parts(
            [part.model_copy(update={"depth": depth}) for part, depth in parts]
        )

    def extrapolated(self, counted: Mapping[tuple[int, ...], Counted]) -> Counted | None:
        """What the whole depth counts, from each of ``runs``; None: it is not affine."""
        base = total = checked = counted[self.base]
        for depths, times in self._steps.items():
            added = counted[depths].plus(base, -1)
            total, checked = total.plus(added, times), checked.plus(added, 2)
        return total if checked == counted[self._check] else None


def _base(depth: int, period: int) -> int:
    return BASE + (depth - BASE) % period


@final
@dataclass(frozen=True, kw_only=True)
class DryStep:
    """A step that has run on tensors without data."""

    counted: Counted
    weights: list[nn.Parameter]
    stretches: Mapping[object, Stretch]
    """Stretches of its memory; none, if nobody asked for them."""


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
        with recorder:
            step, given = prepared(workload, self.strategy, self.ranks, self.rank, recorder)
            inputs, cotangent = given
            if log is not None:
                log.hold(step.model.parameters(), "parameters")
                log.hold([*step.model.buffers(), *inputs.tensors, cotangent], "activations")
                _mark(step, workload, log)
            with recorder.recording():
                step(inputs, cotangent)
                if log is not None:
                    log.settle([x.grad for x in [*step.model.parameters(), *inputs.leaves]])
        return DryStep(
            counted=recorder.taken(),
            weights=list(step.model.parameters()),
            stretches={} if log is None else log.stretches(),
        )


def _mark(step: Step, workload: Workload, log: StorageLog) -> None:
    """Has the log told where stretches begin."""
    log.in_forward = step.train
    places = [(s, i) for s, part in enumerate(workload.parts) for i in range(part.depth)]
    blocks = [each for each in step.model.modules() if isinstance(each, Block)]
    for place, block in zip(places, blocks, strict=False):
        block.register_forward_pre_hook(partial(_enters, log, place))
        block.register_forward_hook(partial(_leaves, log, place), always_call=True)
    step.model.register_forward_hook(partial(_ends, log))


def _enters(log: StorageLog, place: tuple[int, int], *_: Any) -> None:
    if log.run.phase == "forward":
        log.begin(("forward", *place))
    else:
        log.in_forward = True  # again, under checkpointing


def _leaves(log: StorageLog, place: tuple[int, int], _: Any, __: Any, out: Any) -> None:
    if log.run.phase != "forward":
        log.forward_ends()
        return
    x = out[0] if out is not None else None
    if isinstance(x, Tensor) and x.requires_grad:
        x.register_hook(lambda _: log.begin(("backward", *place)))


def _ends(log: StorageLog, *_: Any) -> None:
    log.forward_ends()
    log.begin("between")
