"""A rank's transport that sends nothing, and packs and unpacks as NCCL's does.

It tells when each message is started and when it is waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Protocol, final

import torch
from torch import Tensor

from spbench.comm.packing import Cut, Cuts, pack, unpacked
from spbench.comm.transport import Handle, Transport
from spbench.workload.mesh import Groups
from spbench.workload.traffic import Kind, Op, Phase


class Listener(Protocol):
    """Hears of phases and messages."""

    phase: Phase

    def started(self, kind: Kind, sent: Fraction) -> object:
        """A message leaves; returns what stands for it."""

    def waited(self, message: object) -> None:
        """The message that was started has arrived."""


@final
class _UnderWay:
    """A message that its listener hears has arrived, once, and what is done with it then."""

    def __init__(self, arrived: Callable[[], None], then: Callable[[], object]) -> None:
        self._arrived, self._then = arrived, then

    def wait(self) -> None:
        self._arrived()
        self._then()


@final
class UnsentTransport(Transport):
    """One rank of a group of any size, none of whose other ranks exist."""

    def __init__(self, rank: int, size: int, listener: Listener) -> None:
        super().__init__(rank, size)
        self._listener = listener

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        before, self._listener.phase = self._listener.phase, phase
        try:
            with super().phase(phase):
                yield
        finally:
            self._listener.phase = before

    def _part(self, groups: Groups) -> UnsentTransport:
        (members,) = (group for group in groups if self.rank in group)
        return UnsentTransport(members.index(self.rank), len(members), self._listener)

    def _count(self, op: Op, sent: int | Fraction) -> None:
        super()._count(op, sent)
        self._kind: Kind = (self._whole._phase, op, self._axis)
        self._sent = Fraction(sent)

    def _all_to_all(self, received: Cuts, sent: Cuts) -> Handle:
        pack(sent)
        return self._start(unpacked(received, self.empty)[1])

    def _all_gather(self, received: Cut, sent: Tensor) -> Handle:
        sent.contiguous()
        return self._start(unpacked([received], self.empty)[1])

    def _reduce_scatter(self, received: Tensor, sent: Cut) -> Handle:
        pack([sent])
        if sent.shard.is_even:
            return self._start()
        parts = received.new_empty(self.size, *received.shape)
        return self._start(lambda: torch.sum(parts, 0, out=received))

    def _all_reduce(self, x: Tensor) -> Handle:
        return self._start()

    def _shift(self, received: Tensor, sent: Tensor) -> Handle:
        return self._start()

    def _start(self, then: Callable[[], object] = lambda: None) -> Handle:
        message = self._listener.started(self._kind, self._sent)
        return _UnderWay(lambda: self._listener.waited(message), then)
