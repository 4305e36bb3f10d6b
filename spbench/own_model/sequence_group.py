"""The ranks that share a sequence, as a model of your own calls them: shard, switch, gather.

A tensor here is what this rank holds: cut along one dim into shards as even as possible, longer
ones first (13 positions on 4 ranks are 4, 3, 3, 3), or whole. Every method is differentiable, moves
exactly the bytes that its formula says, and counts them.
"""

from collections.abc import Mapping
from typing import TypeVar, final

import torch
import torch.distributed as dist
from torch import Tensor, nn

from spbench.comm.collectives import Collectives
from spbench.comm.compiler import never_compiled
from spbench.comm.nccl_gloo import GlooTransport, NcclTransport
from spbench.comm.transport import Transport
from spbench.text import counted
from spbench.workload.sharding import Shard

Module = TypeVar("Module", bound=nn.Module)


@final
class SequenceGroup:
    """The ranks that share a sequence, and how long each dim is that they may cut.

    Every rank calls the same methods in the same order.
    """

    def __init__(
        self, lengths: Mapping[int, int], group: dist.ProcessGroup | Transport | None = None
    ) -> None:
        """Joins this rank to the others.

        ``lengths``: positions of the whole tensor along each dim that is ever cut, by the dim's
        number. They may be changed between steps, where inputs differ in size. ``group``: a process
        group of torch.distributed, by default that of all ranks; over NCCL if it has it, else gloo.

        Raises RuntimeError without torch.distributed, ValueError where a rank would hold nothing.
        """
        transport = group if isinstance(group, Transport) else _transport(group)
        self._comm = Collectives(transport)
        self.rank, self.size = transport.rank, transport.size
        self.lengths = dict(lengths)
        for dim, length in self.lengths.items():
            self._shard(dim, length)

    @property
    def transport(self) -> Transport:
        """What moves the bytes and counts them: ``transport.sent``, until ``transport.reset()``."""
        return self._comm.transport

    def shard(self, x: Tensor, dim: int) -> Tensor:
        """This rank's part along ``dim`` of a tensor that every rank has whole. Sends nothing.

        A view, whose gradient is zero elsewhere: summed over the ranks it is the whole one.
        """
        return self._comm.take(x, self._whole(x, dim, "shard"))

    @never_compiled
    def switch(self, x: Tensor, before: int, after: int) -> Tensor:
        """Dim ``before``, along which ``x`` is cut, becomes whole, and ``after`` is cut.

        One all-to-all forward and one backward, in which each rank sends all but its own part:
        (N - 1) / N of what it holds, N the number of ranks. Raises ValueError where ``x`` is not
        this rank's part along ``before``, or not whole along ``after``.
        """
        cut = self._part(x, before, "switch")
        (moved,) = self._comm.switch(x, before=cut, after=self._whole(x, after, "switch"))
        return moved

    @never_compiled
    def gather(self, x: Tensor, dim: int) -> Tensor:
        """The whole tensor on every rank, from their parts along ``dim``.

        Each rank sends its part to all others. Backward, a reduce-scatter, sums what the ranks'
        gradients of the whole say of each part: let each rank's loss be its share of all.
        """
        return self._comm.all_gather(x, self._part(x, dim, "gather"))

    def sum_gradients(self, module: Module) -> Module:
        """From now on each backward leaves the sum over the ranks in every ``.grad`` of ``module``.

        Each rank computes what its own positions contribute; the sum is what one device has. One
        all-reduce a weight, as its gradient is ready. Returns ``module``.
        """
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.register_hook(self._total)
        return module

    def _total(self, gradient: Tensor) -> Tensor:
        with self.transport.phase("gradients"):
            return self._comm.all_reduce(gradient)

    def _part(self, x: Tensor, dim: int, method: str) -> Shard:
        """How ``x`` is cut along ``dim``, which it must be."""
        dim %= x.ndim
        if dim not in self.lengths:
            raise ValueError(
                f"{method}: how long is dim {dim} in the whole tensor? Known are the lengths "
                f"{self.lengths}; give SequenceGroup this one, too"
            )
        shard = self._shard(dim, self.lengths[dim])
        held, part = x.shape[dim], shard.sizes[self.rank]
        if held != part:
            raise ValueError(
                f"{method}: the tensor has {held} positions along dim {dim} on rank {self.rank}, "
                f"whose part of {shard.length} is {part}; along which dim is it cut?"
            )
        return shard

    def _whole(self, x: Tensor, dim: int, method: str) -> Shard:
        """How ``x`` is to be cut along ``dim``, along which it must be whole."""
        dim %= x.ndim
        held, length = x.shape[dim], self.lengths.get(dim, x.shape[dim])
        if held != length:
            raise ValueError(
                f"{method}: the tensor has {held} positions along dim {dim} on rank {self.rank}, "
                f"not all {length}; is it cut there already?"
            )
        return self._shard(dim, length)

    def _shard(self, dim: int, length: int) -> Shard:
        if length < self.size:
            raise ValueError(
                f"dim {dim} has {counted(length, 'position')} for {self.size} ranks; cut one that "
                "has at least as many"
            )
        return Shard.even(dim, length, self.size)


def _transport(group: dist.ProcessGroup | None) -> Transport:
    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError(
            "torch.distributed has no process group yet: call "
            "torch.distributed.init_process_group() first, in ranks that torchrun starts"
        )
    group = group or dist.group.WORLD
    if not isinstance(group, dist.ProcessGroup):
        raise ValueError("this rank is not in the process group that was given")
    has_nccl = "nccl" in str(dist.get_backend_config(group)) and torch.cuda.is_available()
    return NcclTransport(group) if has_nccl else GlooTransport(group)
