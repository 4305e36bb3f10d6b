"""Ranks as threads of one process on the CPU: real values change hands, nothing is sent.

For checking a strategy at any number of ranks where there are not that many devices: the gate of a
one-GPU share, and tests. A backward pass on the CPU runs in the thread that asked for it, so ranks
can wait for each other inside one; on CUDA one thread serves a whole device, and they could not.
"""

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from typing import TypeVar, final

import torch
from torch import Tensor

from spbench.comm.nccl_gloo import MessageTransport, is_ready
from spbench.comm.packing import Parts, copy_joined
from spbench.comm.transport import DONE, Handle, Several
from spbench.workload.mesh import Groups, Members

T = TypeVar("T")
WAIT_S = 0.1
"""After so long a thread that waits for another looks whether that has failed."""


@final
class ThreadRendezvous:
    """Threads of one group show each other tensors here, one round at a time."""

    def __init__(self, size: int, timeout_s: float = 900.0) -> None:
        self._shown: list[Sequence[Parts]] = [()] * size
        self.barrier = threading.Barrier(size, timeout=timeout_s)
        self._parts: dict[Members, ThreadRendezvous] = {}
        self._mail: dict[tuple[int, int], deque[Tensor]] = defaultdict(deque)
        self._arrived = threading.Condition()
        self._timeout_s = timeout_s
        self._making = threading.Lock()

    def part(self, members: Members) -> "ThreadRendezvous":
        """Where some of the threads meet; where this one was given up, so is that."""
        with self._making:
            part = self._parts.setdefault(members, ThreadRendezvous(len(members)))
            if self.barrier.broken:
                part.barrier.abort()
            return part

    def abort(self) -> None:
        """All who wait here, or will, fail at once."""
        with self._making:
            for meeting in (self, *self._parts.values()):
                meeting.barrier.abort()

    def post(self, sender: int, to: int, x: Tensor) -> None:
        """One thread sends to another, and goes on."""
        with self._arrived:
            self._mail[sender, to].append(x.clone())
            self._arrived.notify_all()

    def collect(self, sender: int, to: int) -> Tensor:
        """What ``sender`` has posted first; waits for it."""
        until_s = time.monotonic() + self._timeout_s
        with self._arrived:
            mail = self._mail[sender, to]
            while not mail:
                if self.barrier.broken or time.monotonic() > until_s:
                    raise threading.BrokenBarrierError
                self._arrived.wait(WAIT_S)
            return mail.popleft()

    def exchange(
        self, rank: int, mine: Sequence[Parts], take: Callable[[list[Sequence[Parts]]], T]
    ) -> T:
        """``take`` is given what every rank shows, and must copy what it keeps."""
        self._shown[rank] = mine
        self.barrier.wait()
        taken = take(self._shown)
        self.barrier.wait()
        return taken


@final
class ThreadTransport(MessageTransport):
    """One thread's place in a ``ThreadRendezvous``."""

    def __init__(self, rank: int, meeting: ThreadRendezvous) -> None:
        super().__init__(rank, meeting.barrier.parties)
        self.meeting = meeting

    def _part(self, groups: Groups) -> "ThreadTransport":
        (members,) = (group for group in groups if self.rank in group)
        return ThreadTransport(members.index(self.rank), self.meeting.part(members))

    def _exchange(
        self,
        received: Sequence[Parts],
        sent: Sequence[Parts],
        run_dim: int,
        ready: Callable[[int], object] = is_ready,
    ) -> Handle:
        for step in range(1, self.size + 1):
            ready((self.rank + step) % self.size)

        def take(shown: list[Sequence[Parts]]) -> None:
            for targets, by_rank in zip(received, shown, strict=True):
                copy_joined(targets, by_rank[self.rank], run_dim)

        self.meeting.exchange(self.rank, sent, take)
        return DONE

    def _all_reduce(self, x: Tensor) -> Handle:
        def total(shown: list[Sequence[Parts]]) -> Tensor:
            return torch.stack([parts[0][0] for parts in shown]).sum(0)

        x.copy_(self.meeting.exchange(self.rank, [[x]], total))
        return DONE

    def _send(self, x: Tensor, to: int) -> Handle:
        self.meeting.post(self.rank, to, x)
        return DONE

    def _receive(self, x: Tensor, source: int) -> Handle:
        return Several([], [lambda: x.copy_(self.meeting.collect(source, self.rank))])

    def _shift(self, received: Tensor, sent: Tensor, by: int) -> Handle:
        source = (self.rank - by) % self.size
        self.meeting.exchange(
            self.rank, [[sent]], lambda shown: received.copy_(shown[source][0][0])
        )
        return DONE


def run_rank_threads(
    size: int, rank_main: Callable[[ThreadTransport], T], also: Sequence[ThreadRendezvous] = ()
) -> list[T]:
    """``rank_main`` on ``size`` threads at once; their results by rank.

    The first failure is raised, after every thread has ended. ``also``: where else they meet.
    """
    _make_operators()
    meeting = ThreadRendezvous(size)

    def run(rank: int) -> T:
        try:
            return rank_main(ThreadTransport(rank, meeting))
        except BaseException:
            for each in (meeting, *also):
                each.abort()  # the others fail too instead of waiting for this rank
            raise

    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(run, rank) for rank in range(size)]
    errors = [error for future in futures if (error := future.exception())]
    for error in sorted(errors, key=lambda e: isinstance(e, threading.BrokenBarrierError)):
        raise error
    return [future.result() for future in futures]


@cache
def _make_operators() -> None:
    """Makes the Python objects of torch's operators, as it does itself at their first use below a
    TorchDispatchMode. Where threads come to that use at once, torch (2.13) frees an object that it
    has kept, and the process crashes at the next use."""
    for full_name in torch._C._dispatch_get_all_op_names():
        space, _, name = full_name.partition("::")
        packet, _, overload = name.partition(".")
        if space == "aten":
            with suppress(AttributeError):  # a name without a schema
                getattr(getattr(getattr(torch.ops, space), packet), overload or "default")
