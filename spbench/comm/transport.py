"""Moves parts of tensors between the ranks of one group, and counts what each part sends.

``Transport`` counts, in ``_count``; a subclass moves: NCCL's and gloo's in ``nccl_gloo.py``.
A count is taken from the very tensors that are handed over, so a strategy cannot move what is not
counted. Parts are views, in rank order, of whole tensors on either side (``Cut``); each transport
decides whether to pack them.
"""

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol, Self, final

from torch import Tensor

from spbench.comm.compiler import never_compiled
from spbench.comm.packing import Cut, Cuts
from spbench.results.heartbeat import Heartbeat
from spbench.workload.mesh import ALL, Groups
from spbench.workload.traffic import Count, Kind, Op, Phase, all_reduce_bytes, merged


class Work(Protocol):
    """A message under way, or several. Its tensors belong to it until ``wait`` returns."""

    def wait(self) -> object: ...


class Handle(Work, Protocol):
    """A transfer under way, of which a part may be there before the others."""

    def wait_for(self, rank: int) -> object:
        """Waits until the part that comes from ``rank`` is there; longer where parts come as one
        message. The transfer has to be waited for all the same."""


@final
class Several:
    """Transfers under way together, each let go when it is over, and what is then left to do."""

    def __init__(
        self, works: Sequence[Work | None], then: Sequence[Callable[[], object]] = ()
    ) -> None:
        self._works, self._then = deque(filter(None, works)), deque(then)

    def wait(self) -> None:
        while self._works:
            self._works.popleft().wait()
        while self._then:
            self._then.popleft()()

    def wait_for(self, rank: int) -> None:
        self.wait()


@final
class ByRank:
    """A transfer whose parts come as messages of their own."""

    def __init__(self, parts: Mapping[int, Work], rest: Work) -> None:
        """``parts``: those that come, by the rank that they come from; ``rest``: those that go."""
        self._parts, self._rest = dict(parts), rest

    def wait_for(self, rank: int) -> None:
        # Popped, so that a part is let go, and unpacked once.
        if rank in self._parts:
            self._parts.pop(rank).wait()

    def wait(self) -> None:
        for rank in [*self._parts]:
            self.wait_for(rank)
        self._rest.wait()


DONE = Several([])
"""A transfer that is over."""


def behind(rank: int, size: int) -> list[int]:
    """The other ranks in the order in which their parts come: of 2 among 4, 1, 0 and 3."""
    return [(rank - step) % size for step in range(1, size)]


@final
class Watched:
    """A transfer whose transport shows that it works, also while it is waited for."""

    def __init__(self, handle: Handle, transport: "Transport") -> None:
        self._handle, self._transport = handle, transport

    def wait(self) -> None:
        with self._transport.moving():
            self._handle.wait()

    def wait_for(self, rank: int) -> None:
        with self._transport.moving():
            self._handle.wait_for(rank)


Fill = Callable[[slice], object]
"""Computes some rows of a tensor that is about to be sent, in place: (first row, row behind the
last) of the dim that its parts are cut along."""


def is_filled(_: slice) -> None:
    """The ``Fill`` of a tensor that is there."""


class Transport(ABC):
    """The ranks of one group. Public methods count; the underscored ones move."""

    def __init__(self, rank: int, size: int, heartbeat: Heartbeat | None = None) -> None:
        self.rank, self.size = rank, size
        self._heartbeat = heartbeat
        self.sent: Count = {}
        self.calls: dict[Kind, int] = {}
        self._phase: Phase = "forward"
        self._axis, self._whole = ALL, self
        self._along: dict[tuple[str, Groups], Self] = {}
        self.is_moving = False
        """Whether a transfer that was counted is being posted: other collectives pass by."""
        self.is_watched = False
        """Whether a transfer shows in ``is_moving`` also while it is waited for, where what came is
        unpacked. Not in timed steps."""

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        """What is sent inside is counted as ``phase`` (recomputation: as backward)."""
        before, self._phase = self._phase, phase
        try:
            yield
        finally:
            self._phase = before

    @property
    def axis(self) -> str:
        """The axis of the mesh that this group is of, as which its transfers are counted."""
        return self._axis

    @property
    def phase_now(self) -> Phase:
        """The phase as which what is sent now is counted."""
        return self._phase

    def reset(self) -> None:
        """Forget what was counted."""
        self.sent, self.calls = {}, {}

    def count_again(self, sent: Count, calls: Mapping[Kind, int]) -> None:
        """Counts what was seen of a captured step, which sends it once more: in a replay none of
        the code runs that counts."""
        for kind, size in sent.items():
            self.sent[kind] = self.sent.get(kind, 0) + size
        for kind, times in calls.items():
            self.calls[kind] = self.calls.get(kind, 0) + times

    def along(self, axis: str, groups: Groups) -> Self:
        """The transport of this rank's group among ``groups``, which counts here, as ``axis``.

        Every rank asks for the same, in the same order: the first time ranks may have to meet.
        """
        # To make a group all ranks meet: each is made once.
        if (axis, groups) not in self._along:
            part = self._part(groups)
            part._axis, part._whole, part._heartbeat = axis, self, self._heartbeat
            self._along[axis, groups] = part
        return self._along[axis, groups]

    def empty(self, like: Tensor, shape: Sequence[int]) -> Tensor:
        """An unset tensor to receive into."""
        return like.new_empty(shape)

    @never_compiled
    def all_to_all(self, received: Cuts, sent: Cuts) -> Handle:
        """Part r of each of ``sent`` goes to rank r; that of ``received`` comes from it."""
        self._count("all_to_all", sum(cut.others_bytes(self.rank) for cut in sent))
        return self._move(self._all_to_all, received, sent)

    @never_compiled
    def all_gather(self, received: Cut, sent: Tensor) -> Handle:
        """``sent`` goes to every rank; part r of ``received`` comes from rank r."""
        self._count("all_gather", (self.size - 1) * sent.nbytes)
        return self._move(self._all_gather, received, sent)

    @never_compiled
    def reduce_scatter(self, received: Tensor, sent: Cut, fill: Fill = is_filled) -> Handle:
        """``received`` becomes the sum, over the ranks, of this rank's part of their ``sent``.

        ``fill`` is called for the rows of each part as it is about to leave, and for this rank's
        own, which stays, at last; or once for all rows, where they leave in one message.
        """
        self._count("reduce_scatter", sent.others_bytes(self.rank))
        return self._move(self._reduce_scatter, received, sent, self._aside(fill))

    def in_parts(self, x: Tensor) -> bool:
        """Whether the part of each rank is a message of its own, of a tensor such as ``x``."""
        return False

    @never_compiled
    def all_reduce(self, x: Tensor) -> Handle:
        """``x`` becomes the sum over the ranks, in place."""
        self._count("all_reduce", all_reduce_bytes(x.nbytes, self.size))
        return self._move(self._all_reduce, x)

    @never_compiled
    def shift(self, received: Tensor, sent: Tensor, by: int = 1) -> Handle:
        """``sent`` goes ``by`` ranks on round the ring, and ``received`` comes from as many before;
        by default to the next one, from the previous."""
        self._count("p2p", sent.nbytes)
        return self._move(self._shift, received, sent, by)

    @never_compiled
    def edges(self, received: Cut, sent: Cut) -> Handle:
        """As ``all_to_all``, where a rank has something for a few others alone: it is counted as
        messages from rank to rank."""
        self._count("p2p", sent.others_bytes(self.rank))
        return self._move(self._all_to_all, [received], [sent])

    @never_compiled
    def send(self, x: Tensor, to: int) -> Handle:
        """``x`` goes to one other rank of the group, which receives it."""
        self._count("p2p", x.nbytes)
        return self._move(self._send, x, to)

    @never_compiled
    def receive(self, x: Tensor, source: int) -> Handle:
        """``x`` becomes what one other rank of the group sends. It is counted there."""
        return self._move(self._receive, x, source)

    @contextmanager
    def moving(self) -> Iterator[None]:
        """Inside, a transfer that was counted is under way."""
        # Transfers may lie inside each other: the outer one is still under way behind the inner.
        before, self.is_moving = self.is_moving, True
        try:
            yield
        finally:
            self.is_moving = before

    def _move(self, move: Callable[..., Handle], *tensors: object) -> Handle:
        whole = self._whole
        if whole.is_watched:
            with whole.moving():
                return Watched(move(*tensors), whole)
        # A context manager would be a cost of its own in timed steps.
        whole.is_moving = True
        try:
            return move(*tensors)
        finally:
            whole.is_moving = False

    def _aside(self, fill: Fill) -> Fill:
        """``fill``, which computes while a transfer is posted, and is no part of it."""
        if fill is is_filled:
            return fill

        def filled(rows: slice) -> None:
            whole = self._whole
            before, whole.is_moving = whole.is_moving, False
            try:
                fill(rows)
            finally:
                whole.is_moving = before

        return filled

    def _count(self, op: Op, sent: int | Fraction) -> None:
        if self._heartbeat is not None:
            self._heartbeat.transfer()
        # Over one rank nothing is sent, and nothing is counted as a call.
        if sent:
            whole = self._whole
            kind = (whole._phase, op, self._axis)
            whole.sent[kind] = whole.sent.get(kind, 0) + sent
            whole.calls[kind] = whole.calls.get(kind, 0) + 1

    @abstractmethod
    def _part(self, groups: Groups) -> Self:
        """A transport of the ranks of this rank's group."""

    @abstractmethod
    def _all_to_all(self, received: Cuts, sent: Cuts) -> Handle: ...

    @abstractmethod
    def _all_gather(self, received: Cut, sent: Tensor) -> Handle: ...

    @abstractmethod
    def _reduce_scatter(self, received: Tensor, sent: Cut, fill: Fill) -> Handle: ...

    @abstractmethod
    def _all_reduce(self, x: Tensor) -> Handle: ...

    @abstractmethod
    def _shift(self, received: Tensor, sent: Tensor, by: int) -> Handle: ...

    @abstractmethod
    def _send(self, x: Tensor, to: int) -> Handle: ...

    @abstractmethod
    def _receive(self, x: Tensor, source: int) -> Handle: ...


@dataclass(frozen=True, kw_only=True)
class Transports:
    """The two groups of one rank: the strategy's own, and one for the gradient all-reduce."""

    strategy: Transport
    gradients: Transport

    def reset(self) -> None:
        self.strategy.reset()
        self.gradients.reset()

    def sent(self) -> Count:
        """Bytes sent since the last reset, of both."""
        return merged(self.strategy.sent, self.gradients.sent)

    def calls(self) -> dict[Kind, int]:
        """Collectives since the last reset that sent something, of both."""
        # A sum of counters leaves zeros out, as predictions do.
        return Counter(self.strategy.calls) + Counter(self.gradients.calls)
