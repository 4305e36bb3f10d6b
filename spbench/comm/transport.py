"""Moves bytes between the ranks of one group, and counts what each buffer sends.

``Transport`` counts; a subclass moves. A count is taken from the very buffers that are
handed over, so a strategy cannot move what is not counted. Buffers are flat and contiguous;
``counts`` says how many elements of one belong to each rank, in rank order.

``Silent`` moves nothing: with it a step keeps its computation and its packing and loses its
communication. That gives both the exposed communication of a run and one rank's share of a
cluster that is not there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Protocol, final

import torch
from torch import Tensor

from spbench.comm.transfer import Count, Op, Phase, all_reduce_bytes
from spbench.workload.shards import Sizes


class Handle(Protocol):
    """A transfer under way. Its buffers belong to it until ``wait`` returns."""

    def wait(self) -> object: ...


@final
class Done:
    """A transfer that is over."""

    def wait(self) -> None:
        return None


class Transport(ABC):
    """The ranks of one group. Public methods count; the underscored ones move."""

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

    def all_to_all(
        self, received: Tensor, sent: Tensor, received_counts: Sizes, sent_counts: Sizes
    ) -> Handle:
        """Part r of ``sent`` goes to rank r; part r of ``received`` comes from it."""
        self._count("all_to_all", self._others(sent, sent_counts))
        return self._all_to_all(received, sent, received_counts, sent_counts)

    def all_gather(self, received: Tensor, sent: Tensor, counts: Sizes) -> Handle:
        """``sent`` goes to every rank; part r of ``received`` comes from rank r."""
        self._count("all_gather", (self.size - 1) * sent.nbytes)
        return self._all_gather(received, sent, counts)

    def reduce_scatter(self, received: Tensor, sent: Tensor, counts: Sizes) -> Handle:
        """``received`` becomes the sum, over the ranks, of this rank's part of ``sent``."""
        self._count("reduce_scatter", self._others(sent, counts))
        return self._reduce_scatter(received, sent, counts)

    def all_reduce(self, x: Tensor) -> Handle:
        """``x`` becomes the sum over the ranks, in place."""
        self._count("all_reduce", all_reduce_bytes(x.nbytes, self.size))
        return self._all_reduce(x)

    def shift(self, received: Tensor, sent: Tensor) -> Handle:
        """``sent`` goes to the next rank; ``received`` comes from the previous one."""
        self._count("p2p", sent.nbytes if self.size > 1 else 0)
        return self._shift(received, sent)

    def _others(self, sent: Tensor, counts: Sizes) -> int:
        return (sent.numel() - counts[self.rank]) * sent.element_size()

    def _count(self, op: Op, sent: int | Fraction) -> None:
        if sent:
            key = (self._phase, op)
            self.sent[key] = self.sent.get(key, Fraction(0)) + sent
            self.calls[key] = self.calls.get(key, 0) + 1

    @abstractmethod
    def _all_to_all(
        self, received: Tensor, sent: Tensor, received_counts: Sizes, sent_counts: Sizes
    ) -> Handle: ...

    @abstractmethod
    def _all_gather(self, received: Tensor, sent: Tensor, counts: Sizes) -> Handle: ...

    @abstractmethod
    def _reduce_scatter(self, received: Tensor, sent: Tensor, counts: Sizes) -> Handle: ...

    @abstractmethod
    def _all_reduce(self, x: Tensor) -> Handle: ...

    @abstractmethod
    def _shift(self, received: Tensor, sent: Tensor) -> Handle: ...


@final
class Silent(Transport):
    """Claims a rank of a group and sends nothing; what it 'receives' is plausible data.

    A buffer at an address that we never filled is filled with random numbers: zeros would
    make a GPU's products faster than real data does, and unwritten memory may hold NaN.
    """

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._filled: set[tuple[int, int]] = set()

    def _all_to_all(
        self, received: Tensor, sent: Tensor, received_counts: Sizes, sent_counts: Sizes
    ) -> Handle:
        return self._fill(received)

    def _all_gather(self, received: Tensor, sent: Tensor, counts: Sizes) -> Handle:
        return self._fill(received)

    def _reduce_scatter(self, received: Tensor, sent: Tensor, counts: Sizes) -> Handle:
        return self._fill(received)

    def _all_reduce(self, x: Tensor) -> Handle:
        return Done()

    def _shift(self, received: Tensor, sent: Tensor) -> Handle:
        return self._fill(received)

    def _fill(self, received: Tensor) -> Handle:
        key = (received.data_ptr(), received.nbytes)
        if key not in self._filled:
            self._filled.add(key)
            with torch.no_grad():
                received.normal_()
        return Done()
