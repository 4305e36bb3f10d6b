"""What is under way: tensors, a whole of which each rank's part comes, blocks that go round.

Whoever waits first does the work that backward has left (``comm/deferred.py``).
"""

from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar, final

from torch import Tensor

from spbench.comm.compiler import never_compiled
from spbench.comm.deferred import Deferred
from spbench.comm.packing import Cut, resized
from spbench.comm.transport import Handle, Transport
from spbench.workload.sharding import Shard

Arriving = TypeVar("Arriving")


@final
class Pending(Generic[Arriving]):
    """A tensor, or several, under way; ``wait`` returns them."""

    def __init__(
        self, handle: Handle, arriving: Arriving, deferred: Deferred | None = None
    ) -> None:
        """``deferred``: work that is done while it is under way."""
        self._handle, self.arriving, self._deferred = handle, arriving, deferred

    @never_compiled
    def wait(self) -> Arriving:
        if self._deferred is not None:
            self._deferred.finish()
        self._handle.wait()
        return self.arriving


@final
class Gathering:
    """A whole tensor whose parts are under way from all ranks; ``wait`` returns it."""

    def __init__(
        self,
        handle: Handle,
        cut: Cut,
        mine: Tensor,
        rank: int,
        sources: Sequence[int] = (),
        deferred: Deferred | None = None,
    ) -> None:
        """
        Parameters
        ----------
        handle
            Of the transfer.
        cut
            The whole, with the dim that is gathered first.
        mine
            This rank's part, with that dim first.
        rank
            This rank.
        sources
            Ranks whose parts come by themselves, in this order; none: all come at once.
        deferred
            Work that is done while all are under way.
        """
        self._handle, self._cut, self._sources = handle, cut, sources
        self._deferred = deferred
        self._own, self._mine = cut.rows(rank), mine

    @property
    def whole(self) -> Tensor:
        """With the parts that have come."""
        return self._cut.tensor.movedim(0, self._cut.shard.dim)

    @never_compiled
    def wait(self) -> Tensor:
        if self._deferred is not None:
            self._deferred.finish()
        self._handle.wait()
        return self.whole

    def arriving(self, least: int = 0) -> Iterator[tuple[slice, Tensor]]:
        """Yields rows of the whole and what they are, the gathered dim first: this rank's own at
        once, then all others as they come. Each row comes once.

        ``least``: where ranks have fewer vectors than these, all come at once, when all are there.
        """
        if not are_worth_it(self._cut.tensor, self._cut.shard, least):
            yield self._cut.all_rows, self.wait().movedim(self._cut.shard.dim, 0)
            return
        yield self._own, self._mine
        for source in self._sources:
            self._wait_for(source)
            yield self._cut.rows(source), self._cut.part(source)
        # What has left is waited for too: until then this rank's part belongs to the transfer.
        whole = self.wait().movedim(self._cut.shard.dim, 0)
        if not self._sources:
            for rows in (slice(0, self._own.start), slice(self._own.stop, len(whole))):
                if rows.start < rows.stop:
                    yield rows, whole[rows]

    @never_compiled
    def _wait_for(self, source: int) -> None:
        self._handle.wait_for(source)


def are_worth_it(whole: Tensor, shard: Shard, least: int) -> bool:
    """Whether the ranks' parts of the vectors of ``whole`` (S, ..., n) are ``least`` each."""
    return whole.shape[:-1].numel() >= least * len(shard.sizes)


@final
class RingBlocks:
    """A whole tensor whose blocks come round a ring, each while the one before is at hand."""

    def __init__(self, transport: Transport, x: Tensor, shard: Shard, deferred: Deferred) -> None:
        """``deferred``: work that is done while a block is under way."""
        self._transport, self._dim, self._deferred = transport, shard.dim, deferred
        mine = x.movedim(shard.dim, 0)
        self._whole = transport.empty(x, resized(mine.shape, 0, shard.length))
        self.blocks = self._whole.split(list(shard.sizes))
        """By owner; those that have not come are unset."""
        self.blocks[transport.rank].copy_(mine)
        self._send_on(transport.rank)

    @property
    def whole(self) -> Tensor:
        """With the blocks that have come."""
        return self._whole.movedim(0, self._dim)

    def arriving(self) -> Iterator[int]:
        """Yields the rank whose block is there, this one's first, while the next is under way."""
        owner: int | None = self._transport.rank
        while owner is not None:
            yield owner
            owner = self.advance()

    @never_compiled
    def advance(self) -> int | None:
        """Waits for the next block and sends it on; its owner, or None: all have come."""
        if self._coming is None:
            return None
        self._deferred.finish()
        self._coming.wait()
        owner = self._owner
        self._send_on(owner)
        return owner

    def wait(self) -> Tensor:
        """The whole, once all blocks have come."""
        while self.advance() is not None:
            pass
        return self.whole

    def _send_on(self, owner: int) -> None:
        # The block that came last goes on: first one's own, then that of the rank before, and so
        # on; the next one belongs to the rank before that. One's own does not come back.
        self._owner = (owner - 1) % self._transport.size
        self._coming = (
            None
            if self._owner == self._transport.rank
            else self._transport.shift(self.blocks[self._owner], self.blocks[owner])
        )
