"""Ranks as threads whose transfers arrive late: what is used too early, or overwritten, shows.

A transfer takes what is sent when all ranks have posted it, and keeps it. Until it is waited for,
the tensors that are to be received hold NaN; then what was sent is written. When a transfer is
waited for, what was sent must still be as it was. A handle that nobody waits for is remembered.

    missing wait                  NaN in a result, or a transfer that nobody waited for
    a buffer filled too early     ``Overwritten`` when its transfer is waited for
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

import torch
from torch import Tensor

from spbench.comm.nccl_gloo import MessageTransport, is_ready
from spbench.comm.packing import Cut, Parts, copy_joined
from spbench.comm.threaded import ThreadRendezvous
from spbench.comm.transport import Fill, Handle, Several
from spbench.workload.mesh import Groups


class Overwritten(AssertionError):
    """A tensor was written to while it was being sent."""


@final
class Late:
    """A transfer that arrives when it is waited for, part by part, and then looks what it sent."""

    def __init__(self, arrivals: dict[int, Callable[[], object]], sent: Sequence[Tensor]) -> None:
        """``arrivals``: what writes the part of each rank."""
        self._arrivals, self.is_over = dict(arrivals), False
        self._sent = [(x, x.clone()) for x in sent]

    def wait_for(self, rank: int) -> None:
        arrive = self._arrivals.pop(rank, None)
        if arrive is not None:
            arrive()

    def wait(self) -> None:
        for x, before in self._sent:
            if not torch.allclose(x, before, rtol=0, atol=0, equal_nan=True):
                raise Overwritten(f"a tensor of shape {tuple(x.shape)} changed while it was sent")
        self._sent = []
        for rank in [*self._arrivals]:
            self.wait_for(rank)
        self.is_over = True


@final
class LateTransport(MessageTransport):
    """One thread's place, whose transfers are slow.

    With ``at_once`` parts come together, as on NCCL, and a sum leaves in one message.
    """

    def __init__(self, rank: int, meeting: ThreadRendezvous, *, at_once: bool = False) -> None:
        super().__init__(rank, meeting.barrier.parties)
        self.meeting, self.at_once = meeting, at_once
        self.posted: list[Late] = []
        """All transfers, those of its groups too."""

    @property
    def pending(self) -> int:
        """Transfers that nobody has waited for."""
        return sum(not handle.is_over for handle in self.posted)

    def in_parts(self, x: Tensor) -> bool:
        return not self.at_once

    def _part(self, groups: Groups) -> LateTransport:
        (members,) = (group for group in groups if self.rank in group)
        meeting = self.meeting.part(members)
        part = LateTransport(members.index(self.rank), meeting, at_once=self.at_once)
        part.posted = self.posted
        return part

    def _reduce_scatter(self, received: Tensor, sent: Cut, fill: Fill) -> Handle:
        if self.at_once:
            fill(sent.all_rows)
        return super()._reduce_scatter(received, sent, fill if not self.at_once else lambda _: None)

    def _exchange(
        self,
        received: Sequence[Parts],
        sent: Sequence[Parts],
        run_dim: int,
        ready: Callable[[int], object] = is_ready,
    ) -> Handle:
        for step in range(1, self.size + 1):
            ready((self.rank + step) % self.size)

        def take(shown: list[Sequence[Parts]]) -> list[list[Tensor]]:
            return [[part.clone() for part in by_rank[self.rank]] for by_rank in shown]

        came = self.meeting.exchange(self.rank, sent, take)
        copy_joined(received[self.rank], sent[self.rank], run_dim)
        others = [rank for rank in range(self.size) if rank != self.rank]
        arrivals = {rank: _arrival(received[rank], came[rank], run_dim) for rank in others}
        return self._late(arrivals, [part for rank in others for part in sent[rank]])

    def _all_reduce(self, x: Tensor) -> Handle:
        def total(shown: list[Sequence[Parts]]) -> Tensor:
            return torch.stack([parts[0][0] for parts in shown]).sum(0)

        came = self.meeting.exchange(self.rank, [[x]], total)
        return self._late({self.rank: _arrival([x], [came], 0)}, [])

    def _shift(self, received: Tensor, sent: Tensor, by: int) -> Handle:
        source = (self.rank - by) % self.size
        came = self.meeting.exchange(self.rank, [[sent]], lambda shown: shown[source][0][0].clone())
        return self._late({self.rank: _arrival([received], [came], 0)}, [sent])

    def _send(self, x: Tensor, to: int) -> Handle:
        self.meeting.post(self.rank, to, x)
        return self._late({}, [x])

    def _receive(self, x: Tensor, source: int) -> Handle:
        came = self.meeting.collect(source, self.rank)
        return self._late({source: _arrival([x], [came], 0)}, [])

    def _late(self, arrivals: dict[int, Callable[[], object]], sent: Sequence[Tensor]) -> Handle:
        handle = Late(arrivals, sent)
        self.posted.append(handle)
        return handle if not self.at_once else Several([handle])


def _arrival(targets: Parts, came: Parts, run_dim: int) -> Callable[[], object]:
    """Spoils ``targets`` now; gives the call that writes what came."""
    for target in targets:
        if target.is_floating_point():
            target.fill_(torch.nan)
    return lambda: copy_joined(targets, came, run_dim)
