"""The transports that move bytes between processes: NCCL on GPUs, gloo on CPUs.

The only file that calls torch.distributed's collectives. Each moves what its formula says
and no more. gloo needs care (measured: docs/performance.md): its own reduce-scatter is an
all-reduce inside and moves twice the bytes, and its all-gather refuses uneven shards and
runs slower than plain sends and receives; both are composed here instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

import torch
import torch.distributed as dist
from torch import Tensor

from spbench.comm.transport import Done, Handle, Transport
from spbench.workload.shards import Sizes

# torch 2.13 renames these two and deprecates the old names.
_all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@final
class Several:
    """Transfers under way together, and what is left to do when all have arrived."""

    def __init__(self, works: Sequence[Handle], then: Callable[[], object] = lambda: None) -> None:
        self._works, self._then = works, then

    def wait(self) -> None:
        for work in self._works:
            work.wait()
        self._then()


class Network(Transport):
    """A torch process group."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__(dist.get_rank(group), dist.get_world_size(group))
        self.group = group

    def _all_to_all(
        self, received: Tensor, sent: Tensor, received_counts: Sizes, sent_counts: Sizes
    ) -> Handle:
        return dist.all_to_all_single(
            received,
            sent,
            list(received_counts),
            list(sent_counts),
            group=self.group,
            async_op=True,
        )

    def _all_reduce(self, x: Tensor) -> Handle:
        return dist.all_reduce(x, group=self.group, async_op=True)

    def _shift(self, received: Tensor, sent: Tensor) -> Handle:
        to, source = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        if to == self.rank:
            received.copy_(sent)
            return Done()
        return self._exchange([(sent, to)], [(received, source)])

    def _exchange(
        self, sends: list[tuple[Tensor, int]], receives: list[tuple[Tensor, int]]
    ) -> Several:
        """Point-to-point transfers, all posted before any is waited for."""
        ops = [dist.P2POp(dist.isend, x, group=self.group, group_peer=to) for x, to in sends]
        ops += [dist.P2POp(dist.irecv, x, group=self.group, group_peer=of) for x, of in receives]
        return Several(dist.batch_isend_irecv(ops) if ops else [])

    def _gather_by_exchange(self, received: Tensor, sent: Tensor, counts: Sizes) -> Handle:
        parts = received.split(list(counts))
        peers = [(self.rank + step) % self.size for step in range(1, self.size)]
        handle = self._exchange(
            [(sent, peer) for peer in peers], [(parts[peer], peer) for peer in reversed(peers)]
        )
        parts[self.rank].copy_(sent)
        return handle

    def _reduce_by_exchange(self, received: Tensor, sent: Tensor, counts: Sizes) -> Handle:
        """One all-to-all and a local sum, which is rounded once."""
        own = counts[self.rank]
        parts = sent.new_empty(own * self.size)
        handle = self._all_to_all(parts, sent, (own,) * self.size, counts)
        return Several([handle], lambda: torch.sum(parts.view(self.size, own), 0, out=received))


@final
class Gloo(Network):
    """CPU tensors over sockets."""

    def _all_gather(self, received: Tensor, sent: Tensor, counts: Sizes) -> Handle:
        return self._gather_by_exchange(received, sent, counts)

    def _reduce_scatter(self, received: Tensor, sent: Tensor, counts: Sizes) -> Handle:
        return self._reduce_by_exchange(received, sent, counts)


@final
class Nccl(Network):
    """CUDA tensors over NVLink, PCIe or the network; uneven shards by sends and receives."""

    def _all_gather(self, received: Tensor, sent: Tensor, counts: Sizes) -> Handle:
        if len(set(counts)) > 1:
            return self._gather_by_exchange(received, sent, counts)
        return _all_gather_single(received, sent, group=self.group, async_op=True)

    def _reduce_scatter(self, received: Tensor, sent: Tensor, counts: Sizes) -> Handle:
        if len(set(counts)) > 1:
            return self._reduce_by_exchange(received, sent, counts)
        return _reduce_scatter_single(received, sent, group=self.group, async_op=True)
