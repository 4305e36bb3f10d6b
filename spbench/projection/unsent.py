"""A rank's step on tensors without data, over transports that send nothing.

They pack and unpack as NCCL's and gloo's do, and tell when each message is started and when it is
waited for. A call of such a step, made again with other tensors of its description, is the same
kernel on the same memory layout: a rank can time it.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from functools import partial
from typing import Any, Self, final

import torch
from torch import Tensor

from spbench.comm.nccl_gloo import MessageTransport
from spbench.comm.packing import Cut, Cuts, Parts, copy_joined, incoming, outgoing, pack, unpacked
from spbench.comm.transport import Handle, Several, Transport, Transports
from spbench.projection.dataless import META, Known, Signature
from spbench.projection.recorder import Recorder
from spbench.projection.work import Kernel
from spbench.strategies.base import Strategy
from spbench.worker.step import Step
from spbench.workload.case import Device
from spbench.workload.fields import DTYPE_BYTES
from spbench.workload.mesh import Groups
from spbench.workload.timed import TimedKernel
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

    def _shift(self, received: Tensor, sent: Tensor) -> Handle:
        return self._start([received, sent])

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
        flat, unpack = unpacked(received, self.empty)
        return self._start([flat, pack(sent)], [unpack])

    def _all_gather(self, received: Cut, sent: Tensor) -> Handle:
        flat, unpack = unpacked([received], self.empty)
        return self._start([flat, sent.contiguous()], [unpack])

    def _reduce_scatter(self, received: Tensor, sent: Cut) -> Handle:
        flat = pack([sent])
        if sent.shard.is_even:
            return self._start([received, flat])
        parts = received.new_empty(self.size, *received.shape)
        return self._start([parts, flat], [lambda: torch.sum(parts, 0, out=received)])


@final
class UnsentGloo(MessageTransport, UnsentTransport):
    """Packs as gloo's: messages from rank to rank."""

    def _exchange(self, received: Sequence[Parts], sent: Sequence[Parts], run_dim: int) -> Handle:
        messages: list[Tensor] = []
        unpacks: list[Callable[[], object]] = []
        for rank in {*range(self.size)} - {self.rank}:
            messages += outgoing(sent[rank], run_dim)
            arriving, unpack = incoming(received[rank], run_dim)
            messages += arriving
            unpacks.append(unpack)
        copy_joined(received[self.rank], sent[self.rank], run_dim)
        return self._start(messages, unpacks)


def prepared(
    workload: Workload, strategy: Strategy, ranks: int, rank: int, recorder: Recorder
) -> tuple[Step, Any]:
    """The step without an optimizer, and its inputs; messages are packed as its device does."""
    transport: type[UnsentTransport] = UnsentGloo if recorder.device == "cpu" else UnsentNccl
    strategy_own, gradients = (transport(rank, ranks, recorder) for _ in range(2))
    transports = Transports(strategy=strategy_own, gradients=gradients)
    step = Step(workload.model_copy(update={"optimizer": "none"}), strategy, transports, META)
    return step, step.seeded_inputs()


def timed_calls(
    workload: Workload,
    strategy: Strategy,
    ranks: int,
    device: Device,
    known: dict[Signature, Known] | None = None,
) -> Iterator[TimedKernel]:
    """Each different call of a step of rank 0 that launches a kernel. Left out are those that take
    what no description holds, such as infinity. ``known``: what dry runs as on ``device`` share."""
    workload, recorder = strategy.flattened(workload), Recorder(device, known)
    with recorder:
        step, given = prepared(workload, strategy, ranks, 0, recorder)
        with recorder.recording():
            step(*given)
    for signature, kernel in recorder.calls():
        timed = _timed(signature, kernel, workload)
        if timed is not None:
            yield timed


def _timed(signature: Signature, kernel: Kernel, workload: Workload) -> TimedKernel | None:
    operation, *given = signature
    named = dict(each for each in given if _is_named(each))
    given = [each for each in given if not _is_named(each)]
    try:
        arguments = [_plain(each) for each in given]
        by_name = {name: _plain(value) for name, value in named.items() if value != META}
        json.dumps([arguments, by_name], allow_nan=False)
    except (TypeError, ValueError):
        return None
    passes = kernel.moved_bytes // (2 * DTYPE_BYTES[workload.dtype])
    return TimedKernel(
        kind=kernel.kind,
        shape=list(kernel.shape) or [max(1, passes)],
        dtype=workload.dtype,
        is_masked=kernel.is_masked,
        is_backward=kernel.is_backward,
        name=kernel.name,
        has_short_rows=kernel.has_short_rows,
        op=operation.__name__,
        given=arguments,
        named=by_name,
    )


def _is_named(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple) and len(value) == 3 and isinstance(value[2], torch.dtype):
        shape, stride, dtype = value
        return {"shape": [*shape], "stride": [*stride], "dtype": str(dtype).removeprefix("torch.")}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    return [_plain(each) for each in value] if isinstance(value, tuple) else value
