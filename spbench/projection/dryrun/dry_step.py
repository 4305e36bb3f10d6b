"""A rank's step on tensors without data, over transports that send nothing.

They pack and unpack as NCCL's and gloo's do, and tell when each message is started and when it is
waited for. A call of such a step, made again with other tensors of its description, is the same
kernel on the same memory layout: a rank can time it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, partial
from typing import Any, Self, final

import torch
from torch import Tensor, nn

from spbench.comm.nccl_gloo import MessageTransport, is_ready
from spbench.comm.packing import (
    Cut,
    Cuts,
    Parts,
    copy_joined,
    incoming,
    inner_dim,
    outgoing,
    pack,
    unpacked,
)
from spbench.comm.sharded_weights import local
from spbench.comm.transport import DONE, Fill, Handle, Several, Transport, Transports
from spbench.model.sublayers import AttentionCore
from spbench.model.transformer import Block
from spbench.projection.dryrun.meta_ops import META, Known, Signature, load_compiler
from spbench.projection.dryrun.recorder import Recorder
from spbench.projection.dryrun.storage_log import StorageLog, Stretch
from spbench.projection.dryrun.work import Counted, summed
from spbench.strategies.base import Plan
from spbench.worker.step import Step
from spbench.workload.case import Device
from spbench.workload.mesh import Groups
from spbench.workload.traffic import Kind, Op, Phase
from spbench.workload.workload import Workload


class UnsentTransport(Transport):
    """One rank of a group of any size, none of whose other ranks exist."""

    def __init__(self, rank: int, size: int, recorder: Recorder) -> None:
        super().__init__(rank, size)
        self._recorder = recorder

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        before, self._recorder.phase = self._recorder.phase, phase
        try:
            with super().phase(phase):
                yield
        finally:
            self._recorder.phase = before

    def _part(self, groups: Groups) -> Self:
        (members,) = (group for group in groups if self.rank in group)
        return type(self)(members.index(self.rank), len(members), self._recorder)

    def _count(self, op: Op, sent: int | Fraction) -> None:
        super()._count(op, sent)
        self._kind: Kind = (self._whole._phase, op, self._axis)
        self._sent = sent

    def _all_reduce(self, x: Tensor) -> Handle:
        return self._start([x])

    def _shift(self, received: Tensor, sent: Tensor, by: int) -> Handle:
        return self._start([received, sent])

    def _send(self, x: Tensor, to: int) -> Handle:
        return self._start([x])

    def _receive(self, x: Tensor, source: int) -> Handle:
        return DONE  # the rank that sends it has it as its message

    def _start(
        self, tensors: Sequence[Tensor], then: Sequence[Callable[[], object]] = ()
    ) -> Handle:
        """``then``: what is done when ``tensors`` have arrived, or left."""
        message = self._recorder.started(self._kind, self._sent, tensors)
        return Several([], [partial(self._recorder.waited, message), *then])


@final
class UnsentNccl(UnsentTransport):
    """Packs as NCCL's: each collective takes a flat buffer."""

    def _all_to_all(self, received: Cuts, sent: Cuts) -> Handle:
        along = inner_dim(received, sent)
        flat, unpack = unpacked(received, self.empty, along)
        return self._start([flat, pack(sent, along)], [unpack])

    def _all_gather(self, received: Cut, sent: Tensor) -> Handle:
        flat, unpack = unpacked([received], self.empty)
        return self._start([flat, sent.contiguous()], [unpack])

    def _reduce_scatter(self, received: Tensor, sent: Cut, fill: Fill) -> Handle:
        fill(sent.all_rows)
        flat = pack([sent])
        if sent.shard.is_even:
            return self._start([received, flat])
        parts = received.new_empty(self.size, *received.shape)
        return self._start([parts, flat], [lambda: torch.sum(parts, 0, out=received)])


@final
class UnsentGloo(MessageTransport, UnsentTransport):
    """Packs as gloo's: messages from rank to rank."""

    def _exchange(
        self,
        received: Sequence[Parts],
        sent: Sequence[Parts],
        run_dim: int,
        ready: Callable[[int], object] = is_ready,
    ) -> Handle:
        messages: list[Tensor] = []
        unpacks: list[Callable[[], object]] = []
        for rank in {*range(self.size)} - {self.rank}:
            ready(rank)
            messages += outgoing(sent[rank], run_dim)
            arriving, unpack = incoming(received[rank], run_dim)
            messages += arriving
            unpacks.append(unpack)
        # One message stands for those to all ranks: it leaves when the last part is there, hides
        # behind this rank's own, and has arrived when the first part is waited for.
        handle = self._start(messages, unpacks)
        ready(self.rank)
        copy_joined(received[self.rank], sent[self.rank], run_dim)
        return handle


def prepared(plan: Plan, rank: int, recorder: Recorder) -> tuple[Step, Any]:
    """The step without an optimizer, and its inputs; messages are packed as its device does."""
    transport: type[UnsentTransport] = UnsentGloo if recorder.device == "cpu" else UnsentNccl
    strategy_own, gradients = (transport(rank, plan.ranks, recorder) for _ in range(2))
    transports = Transports(strategy=strategy_own, gradients=gradients)
    step = Step(plan, transports, META, with_optimizer=False)
    return step, step.seeded_inputs()


@final
@dataclass(frozen=True, kw_only=True)
class DryStep:
    """A step that has run on tensors without data."""

    parts: Mapping[object, Counted]
    """What each of its stretches counts."""
    weights: list[nn.Parameter]
    blocks: list[range]
    """Which of the weights each block has, from the first block on."""
    stretches: Mapping[object, Stretch]
    """Stretches of its memory; none, if nobody asked for them."""

    @cached_property
    def counted(self) -> Counted:
        return summed(self.parts.values())


@final
@dataclass(frozen=True)
class DryRun:
    """One rank of a plan, ready to run steps without data, of its workload or a smaller one."""

    plan: Plan
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
            step, given = prepared(self.plan.rebound(workload), self.rank, recorder)
            inputs, cotangent = given
            blocks = [each for each in step.model.modules() if isinstance(each, Block)]
            _mark(step, blocks, workload, recorder)
            if log is not None:
                log.hold(step.weights.values(), "parameters")
                if step.shared is not None:
                    log.resized = partial(getattr, step.shared, "gathered")
                log.hold([*step.model.buffers(), *inputs.tensors, cotangent], "activations")
            with recorder.recording():
                step(inputs, cotangent)
                if log is not None:
                    of_weights = (x.grad for x in step.model.parameters() if x.grad is not None)
                    log.settle([*map(local, of_weights), *(x.grad for x in inputs.leaves)])
        parameters = list(step.model.parameters())
        return DryStep(
            parts=recorder.counted(),
            weights=parameters if step.shared is None else _kept(step.weights.values()),
            blocks=_places(parameters, blocks),
            stretches={} if log is None else log.stretches(),
        )


def _kept(weights: Iterable[Tensor]) -> list[nn.Parameter]:
    """A rank's parts of weights that are shared out, with the rows that fill them up."""
    numbers = ((x, x.untyped_storage().nbytes() // x.element_size()) for x in weights)
    return [nn.Parameter(torch.empty(n, dtype=x.dtype, device=META)) for x, n in numbers]


def _places(weights: Sequence[nn.Parameter], blocks: Sequence[Block]) -> list[range]:
    """Where the weights of each block are, which lie side by side."""
    place = {weight: i for i, weight in enumerate(weights)}
    own = [[place[weight] for weight in block.parameters()] for block in blocks]
    return [range(min(places), max(places) + 1) for places in own]


def _mark(step: Step, blocks: Sequence[Block], workload: Workload, recorder: Recorder) -> None:
    """Has ``recorder`` told where stretches begin."""
    places = [(s, i) for s, part in enumerate(workload.parts) for i in range(part.depth)]
    for place, block in zip(places, blocks, strict=False):
        block.register_forward_pre_hook(partial(_enters, recorder, place))
        block.register_forward_hook(partial(_leaves, recorder, place), always_call=True)
    cores = [each for each in step.model.modules() if isinstance(each, AttentionCore)]
    for core in cores if workload.recomputes_attention else ():
        core.register_forward_pre_hook(partial(_enters_again, recorder))
        core.register_forward_hook(partial(_leaves_again, recorder), always_call=True)
    step.model.register_forward_pre_hook(partial(_begins, recorder, step.train))
    step.model.register_forward_hook(partial(_ends, recorder))


def _enters_again(recorder: Recorder, *_: Any) -> None:
    if recorder.phase != "forward" and recorder.storages is not None:
        recorder.storages.in_forward = True  # an attention is recomputed


def _leaves_again(recorder: Recorder, *_: Any) -> None:
    if recorder.phase != "forward":
        _forward_ends(recorder)


def _enters(recorder: Recorder, place: tuple[int, int], *_: Any) -> None:
    if recorder.phase == "forward":
        recorder.begin(("forward", *place))
    else:
        _enters_again(recorder)


def _leaves(recorder: Recorder, place: tuple[int, int], _: Any, __: Any, out: Any) -> None:
    if recorder.phase != "forward":
        _forward_ends(recorder)
        return
    begun = False

    def begin(_: Tensor) -> None:
        nonlocal begun
        if not begun:  # by the strand whose gradient is there first
            recorder.begin(("backward", *place))
        begun = True

    for x, *_rest in (out or {}).values():
        if isinstance(x, Tensor) and x.requires_grad:
            x.register_hook(begin)


def _begins(recorder: Recorder, is_train: bool, *_: Any) -> None:
    if recorder.storages is not None:
        recorder.storages.in_forward = is_train


def _ends(recorder: Recorder, *_: Any) -> None:
    _forward_ends(recorder)
    recorder.begin("between")


def _forward_ends(recorder: Recorder) -> None:
    """Forward, or the recomputation of a block or an attention, is over."""
    if recorder.storages is not None:
        recorder.storages.forward_ends()
