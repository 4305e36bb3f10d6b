"""Kernels and messages of a step that runs on tensors without data, and the calls that launch them.

A dry run knows each call by its signature: shapes, strides and dtypes of tensors, and numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, NamedTuple, TypeAlias, final

from torch import Tensor

from spbench.projection.dryrun.meta_ops import Dataless, Known, Signature, kernel_of
from spbench.projection.dryrun.storage_log import StorageLog, workspace_bytes
from spbench.projection.dryrun.work import Counted, Kernel, Message, as_bytes
from spbench.workload.case import Device
from spbench.workload.traffic import Kind, Phase


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
    calls: int = 0


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
        return Counted(kernels, messages, tally.calls)

    def calls(self) -> list[tuple[Signature, Kernel]]:
        """The different calls that launched a kernel, and that kernel."""
        signatures = {known: key for key, known in self.known.items()}
        ran = dict.fromkeys(known for known, _ in self._kernels)
        return [(signatures[known], known.note.kernel) for known in ran]

    def noted(self, name: str, args: Sequence[Any], outs: Sequence[Tensor]) -> Note:
        inside = workspace_bytes(name, args) if self.device == "cpu" else 0
        return Note(kernel_of(name, args, outs, on_cpu=self.device == "cpu"), inside)

    def created(self, out: Any) -> None:
        if self.storages is not None:
            self.storages.created(out)

    def called(self) -> None:
        if self.storages is not None:
            self.storages.look_at_resized()
        if self.is_on and self.phase != "gradients":
            self._tally.calls += 1

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
        """A message leaves; what stands for it holds its tensors, as NCCL's and gloo's do."""
        message = _UnderWay(kind, sent, tensors)
        if self.is_on and sent and self.phase != "gradients":
            self._flying.append(message)
        return message

    def waited(self, message: _UnderWay) -> None:
        """The message that was started has arrived."""
        if message not in self._flying:
            return
        self._flying.remove(message)
        self._tally.messages[message.kind, message.sent, tuple(message.behind)] += 1
