"""Kernels and messages of a step that runs on tensors without data, and the calls that launch them.

A dry run knows each call by its signature: shapes, strides and dtypes of tensors, and numbers. Made
again with other tensors of that description, it is the same kernel on the same memory layout: a
rank can time it.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, NamedTuple, TypeAlias, final

import torch
from torch import Tensor

from spbench.projection.dataless import META, Dataless, Known, Signature
from spbench.projection.kernel_of import kernel_of
from spbench.projection.storage_log import StorageLog, workspace_bytes
from spbench.projection.unsent import prepared
from spbench.projection.work import Counted, Kernel, Message, as_bytes
from spbench.strategies.base import Strategy
from spbench.workload.case import Device
from spbench.workload.timed import TimedKernel
from spbench.workload.traffic import Kind, Phase
from spbench.workload.workload import DTYPE_BYTES, Workload


class Note(NamedTuple):
    """What is noted of an operation: its kernel, and bytes that it takes for a moment."""

    kernel: Kernel | None
    inside_bytes: int


Launch: TypeAlias = tuple[Known, Phase]
"""A call that launches a kernel."""
Sending: TypeAlias = tuple[Kind, int | Fraction, tuple[Launch, ...]]
"""A message: its kind, the bytes of this rank, and what is launched behind it."""


@final
@dataclass(eq=False)
class _UnderWay:
    """A message that was started and is not waited for."""

    kind: Kind
    sent: int | Fraction
    tensors: Sequence[Tensor]
    behind: list[Launch] = field(default_factory=list)


@final
@dataclass(eq=False)
class _Tally:
    """What a stretch of a step counts."""

    launches: Counter[Launch] = field(default_factory=Counter)
    messages: Counter[Sending] = field(default_factory=Counter)


@final
class Recorder(Dataless):
    """Counts the kernels that would be launched, and messages with the kernels behind them. Those
    of the sum of gradients are left out: what fills a bucket is not a matter of one layer."""

    def __init__(
        self, device: Device = "cuda", known: dict[Signature, Known] | None = None
    ) -> None:
        super().__init__(device, known)
        self.storages: StorageLog | None = None
        """Is told of what appears in memory."""
        self._kernels: dict[Launch, Kernel] = {}
        self._stretches: dict[object, _Tally] = {}
        self._flying: list[_UnderWay] = []
        self.begin(None)

    def begin(self, stretch: object) -> None:
        """A stretch of the step begins."""
        self._tally = self._stretches.setdefault(stretch, _Tally())
        if self.storages is not None:
            self.storages.begin(stretch)

    def counted(self) -> dict[object, Counted]:
        """What was counted, by stretches."""
        return {name: self._of(tally) for name, tally in self._stretches.items()}

    def _of(self, tally: _Tally) -> Counted:
        kernels: Counter[Kernel] = Counter()
        for key, times in tally.launches.items():
            kernels[self._kernels[key]] += times
        messages: Counter[Message] = Counter()
        for ((phase, op, axis), sent, keys), times in tally.messages.items():
            behind, sent_bytes = tuple(self._kernels[key] for key in keys), as_bytes(sent)
            made = Message(op=op, phase=phase, axis=axis, sent_bytes=sent_bytes, behind=behind)
            messages[made] += times
        return Counted(kernels, messages)

    def calls(self) -> list[tuple[Signature, Kernel]]:
        """The different calls that launched a kernel, and that kernel."""
        ran = {known for known, _ in self._kernels}
        return [(key, known.note.kernel) for key, known in self.known.items() if known in ran]

    def noted(self, name: str, args: Sequence[Any], outs: Sequence[Tensor]) -> Note:
        inside = workspace_bytes(name, args) if self.device == "cpu" else 0
        return Note(kernel_of(name, args, outs), inside)

    def created(self, out: Any) -> None:
        if self.storages is not None:
            self.storages.created(out)

    def launched(self, known: Known) -> None:
        if not self.is_on:
            return
        if self.storages is not None and known.note.inside_bytes:
            self.storages.inside(known.note.inside_bytes)
        if known.note.kernel is None or self.phase == "gradients":
            return
        key = known, self.phase
        if key not in self._kernels:
            self._kernels[key] = replace(known.note.kernel, phase=self.phase)
        self._tally.launches[key] += 1
        for message in self._flying:
            message.behind.append(key)

    def started(self, kind: Kind, sent: int | Fraction, tensors: Sequence[Tensor]) -> _UnderWay:
        message = _UnderWay(kind, sent, tensors)
        if self.is_on and sent and self.phase != "gradients":
            self._flying.append(message)
        return message

    def waited(self, message: _UnderWay) -> None:
        if message not in self._flying:
            return
        self._flying.remove(message)
        self._tally.messages[message.kind, message.sent, tuple(message.behind)] += 1


def timed_calls(workload: Workload, strategy: Strategy, ranks: int) -> Iterator[TimedKernel]:
    """Each different call of a step of rank 0 that launches a kernel. Left out are those that take
    what no description holds, such as infinity."""
    recorder = Recorder("cpu")
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
