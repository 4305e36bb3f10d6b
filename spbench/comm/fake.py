"""Collectives that send nothing: a step keeps its computation and its packing.

The time of a step less that of a step with these is its exposed communication; they also give
one rank's share of a cluster that one does not have. What is packed, copied and summed on
the way is what the real transport of the device does (``nccl_gloo.py``).

In place of what other ranks would send there are random numbers: zeros would make a GPU's
products faster than real data does, and unset memory may read as NaN. On CUDA received tensors
live in a memory pool of their own, so that an address once filled holds nothing but such numbers.
On the CPU, where addresses come and go, they are copied from one buffer each time, as a
receive would write them.
"""

from collections.abc import Callable, Sequence
from typing import final

import torch
from torch import Tensor

from spbench.comm.nccl_gloo import MessageTransport, is_ready
from spbench.comm.packing import (
    Cut,
    Cuts,
    Parts,
    copy_joined,
    incoming,
    inner_dim,
    outgoing,
    pack,
    unpacked,
)
from spbench.comm.transport import DONE, Fill, Handle, Transports
from spbench.results.heartbeat import Heartbeat
from spbench.workload.mesh import Groups
from spbench.workload.weights import FSDP


@final
class SilentTransport(MessageTransport):
    """Stands in for a group's transport, and sends nothing."""

    def __init__(self, rank: int, size: int, heartbeat: Heartbeat | None = None) -> None:
        super().__init__(rank, size, heartbeat)
        self._filled: set[tuple[int, int]] = set()
        self._noise: dict[torch.dtype, Tensor] = {}
        self._pool: torch.cuda.MemPool | None = None

    def _part(self, groups: Groups) -> "SilentTransport":
        (members,) = (group for group in groups if self.rank in group)
        return SilentTransport(members.index(self.rank), len(members))

    def empty(self, like: Tensor, shape: Sequence[int]) -> Tensor:
        if not like.is_cuda:
            return like.new_empty(shape)
        if self._pool is None:
            self._pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(self._pool, like.device):
            return like.new_empty(shape)

    def _all_to_all(self, received: Cuts, sent: Cuts) -> Handle:
        if not sent[0].tensor.is_cuda:
            return super()._all_to_all(received, sent)
        along = inner_dim(received, sent)
        pack(sent, along)
        return self._receive_flat(received, along)

    def _exchange(
        self,
        received: Sequence[Parts],
        sent: Sequence[Parts],
        run_dim: int,
        ready: Callable[[int], object] = is_ready,
    ) -> Handle:
        for rank in {*range(self.size)} - {self.rank}:
            # What would leave is packed as for a socket, and dropped.
            ready(rank)
            list(outgoing(sent[rank], run_dim))
            messages, unpack = incoming(received[rank], run_dim)
            self._fill(messages)
            unpack()
        ready(self.rank)
        copy_joined(received[self.rank], sent[self.rank], run_dim)
        return DONE

    def _all_gather(self, received: Cut, sent: Tensor) -> Handle:
        if self.axis == FSDP:  # noise for weights would grow from block to block
            for rank in {*range(self.size)} - {self.rank}:
                received.part(rank).copy_(sent)
            return DONE
        if not sent.is_cuda:
            return super()._all_gather(received, sent)
        sent.contiguous()  # the copy that NCCL would be given
        return self._receive_flat([received])

    def _reduce_scatter(self, received: Tensor, sent: Cut, fill: Fill) -> Handle:
        if not received.is_cuda:
            return super()._reduce_scatter(received, sent, fill)
        fill(sent.all_rows)
        pack([sent])
        if sent.shard.is_even:
            return self._fill([received])
        # NCCL has no uneven reduce-scatter: parts arrive by an all-to-all, and are summed up here.
        parts = self.empty(received, [self.size, *received.shape])
        self._fill([parts])
        torch.sum(parts, 0, out=received)
        return DONE

    def _all_reduce(self, x: Tensor) -> Handle:
        return DONE

    def _shift(self, received: Tensor, sent: Tensor, by: int) -> Handle:
        return self._fill([received])

    def _send(self, x: Tensor, to: int) -> Handle:
        return DONE

    def _receive(self, x: Tensor, source: int) -> Handle:
        return self._fill([x])

    def _receive_flat(self, received: Cuts, along: int | None = None) -> Handle:
        """Into one flat buffer, then apart."""
        flat, unpack = unpacked(received, self.empty, along)
        self._fill([flat])
        unpack()
        return DONE

    @torch.no_grad()
    def _fill(self, received: Parts) -> Handle:
        for part in received:
            # Only received tensors have addresses of the pool: one that was filled still holds
            # noise.
            key = (part.data_ptr(), part.nbytes)
            if not part.is_cuda:
                part.copy_(self._noise_like(part))
            elif key not in self._filled:
                self._filled.add(key)
                part.normal_()
        return DONE

    def _noise_like(self, part: Tensor) -> Tensor:
        noise = self._noise.get(part.dtype)
        if noise is None or noise.numel() < part.numel():
            noise = self._noise[part.dtype] = torch.randn(part.numel(), dtype=part.dtype)
        return noise[: part.numel()].view(part.shape)


def silent_transports(rank: int, size: int, heartbeat: Heartbeat | None = None) -> Transports:
    strategy, gradients = (SilentTransport(rank, size, heartbeat) for _ in range(2))
    return Transports(strategy=strategy, gradients=gradients)
