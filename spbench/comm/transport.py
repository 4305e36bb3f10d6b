"""Moves parts of tensors between the ranks of one group, and counts what each part sends.

``Transport`` counts; a subclass moves. A count is taken from the very tensors that are
handed over, so a strategy cannot move what is not counted. Parts are views, in rank order,
of whole tensors on either side; whether they are packed on the way is the wire's affair.

``Silent`` moves nothing: with it a step keeps its computation and its packing and loses its
communication. That gives both the exposed communication of a run and one rank's share of a
cluster that is not there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from typing import Protocol, final

import torch
from torch import Tensor

from spbench.comm.packing import pack, unpacked
from spbench.comm.transfer import Count, Op, Phase, all_reduce_bytes

Parts = Sequence[Tensor]


class Handle(Protocol):
    """A transfer under way. Its tensors belong to it until ``wait`` returns."""

    def wait(self) -> object: ...


@final
class Done:
    """A transfer that is over."""

    def wait(self) -> None:
        return None


class Transport(ABC):
    """The ranks of one group. Public methods count; the underscored ones move.

    ``run_dim``: from this dim on, each part is contiguous in the tensor that it is a view of,
    on the sending and on the receiving side.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.sent: Count = {}
        self.calls: dict[tuple[Phase, Op], int] = {}
        self._phase: Phase = "forward"

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        """What is sent inside is counted as ``phase`` (recomputation: as backward)."""
        before, self._phase = self._phase, phase
        try:
            yield
        finally:
            self._phase = before

    def reset(self) -> None:
        """Forget what was counted so far."""
        self.sent, self.calls = {}, {}

    def all_to_all(self, received: Sequence[Parts], sent: Sequence[Parts], run_dim: int) -> Handle:
        """``sent[r]`` goes to rank r, one part of each tensor; ``received[r]`` comes from it."""
        self._count("all_to_all", sum(self._others([_nbytes(parts) for parts in sent])))
        return self._all_to_all(received, sent, run_dim)

    def all_gather(self, received: Parts, sent: Tensor, run_dim: int) -> Handle:
        """``sent`` goes to every rank; ``received[r]`` comes from rank r."""
        self._count("all_gather", (self.size - 1) * sent.nbytes)
        return self._all_gather(received, sent, run_dim)

    def reduce_scatter(self, received: Tensor, sent: Parts) -> Handle:
        """``received`` becomes the sum, over the ranks, of their ``sent[self.rank]``."""
        self._count("reduce_scatter", sum(self._others([part.nbytes for part in sent])))
        return self._reduce_scatter(received, sent)

    def all_reduce(self, x: Tensor) -> Handle:
        """``x`` becomes the sum over the ranks, in place."""
        self._count("all_reduce", all_reduce_bytes(x.nbytes, self.size))
        return self._all_reduce(x)

    def shift(self, received: Tensor, sent: Tensor) -> Handle:
        """``sent`` goes to the next rank; ``received`` comes from the previous one."""
        self._count("p2p", sent.nbytes if self.size > 1 else 0)
        return self._shift(received, sent)

    def _others(self, by_rank: Sequence[int]) -> Sequence[int]:
        return [*by_rank[: self.rank], *by_rank[self.rank + 1 :]]

    def _count(self, op: Op, sent: int | Fraction) -> None:
        if sent:
            key = (self._phase, op)
            self.sent[key] = self.sent.get(key, Fraction(0)) + sent
            self.calls[key] = self.calls.get(key, 0) + 1

    @abstractmethod
    def _all_to_all(
        self, received: Sequence[Parts], sent: Sequence[Parts], run_dim: int
    ) -> Handle: ...

    @abstractmethod
    def _all_gather(self, received: Parts, sent: Tensor, run_dim: int) -> Handle: ...

    @abstractmethod
    def _reduce_scatter(self, received: Tensor, sent: Parts) -> Handle: ...

    @abstractmethod
    def _all_reduce(self, x: Tensor) -> Handle: ...

    @abstractmethod
    def _shift(self, received: Tensor, sent: Tensor) -> Handle: ...


def _nbytes(parts: Parts) -> int:
    return sum(part.nbytes for part in parts)


@final
class Silent(Transport):
    """Claims a rank of a group and sends nothing; what it 'receives' is plausible data.

    It packs and unpacks as the flat buffers of NCCL need it on CUDA, and copies this rank's
    own part. The rest of a tensor at an address that it never filled is filled with random
    numbers: zeros would make a GPU's products faster than real data does, and unwritten
    memory may hold NaN.
    """

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._filled: set[tuple[int, int]] = set()

    def _all_to_all(self, received: Sequence[Parts], sent: Sequence[Parts], run_dim: int) -> Handle:
        everything = [part for parts in received for part in parts]
        if sent[0][0].is_cuda:
            pack([part for parts in sent for part in parts])
            return self._receive(everything)
        for target, part in zip(received[self.rank], sent[self.rank], strict=True):
            target.copy_(part)
        return self._fill([part for parts in self._without_own(received) for part in parts])

    def _all_gather(self, received: Parts, sent: Tensor, run_dim: int) -> Handle:
        if sent.is_cuda:
            return self._receive(received)
        received[self.rank].copy_(sent)
        return self._fill([*received[: self.rank], *received[self.rank + 1 :]])

    def _reduce_scatter(self, received: Tensor, sent: Parts) -> Handle:
        if received.is_cuda:
            pack(sent)
        return self._fill([received])

    def _all_reduce(self, x: Tensor) -> Handle:
        return Done()

    def _shift(self, received: Tensor, sent: Tensor) -> Handle:
        return self._fill([received])

    def _without_own(self, parts: Sequence[Parts]) -> Sequence[Parts]:
        return [*parts[: self.rank], *parts[self.rank + 1 :]]

    def _receive(self, received: Parts) -> Handle:
        """Into one flat buffer, then apart, as NCCL would."""
        flat, unpack = unpacked(received)
        self._fill([flat])
        unpack()
        return Done()

    def _fill(self, received: Parts) -> Handle:
        for part in received:
            key = (part.data_ptr(), part.nbytes)
            if key not in self._filled:
                self._filled.add(key)
                with torch.no_grad():
                    part.normal_()
        return Done()
