"""The transports that move bytes between processes: NCCL on GPUs, gloo on CPUs.

No other file calls torch.distributed's collectives. Each moves the bytes that its formula says, and
no more. NCCL is given flat buffers. gloo is given sends and receives, straight from and into the
tensors where their parts are long enough: its own all-to-all needs packing, its reduce-scatter is
an all-reduce inside and moves twice the bytes, its all-gather is slow and refuses uneven shards
(figures: docs/decisions/0004). So gloo's collectives are all made of one exchange of messages; what
stands in for gloo makes them in the same way.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Self, final

import torch
import torch.distributed as dist
from torch import Tensor

from spbench.comm.packing import (
    Cut,
    Cuts,
    Parts,
    by_rank,
    copy_joined,
    incoming,
    inner_dim,
    is_same_place,
    outgoing,
    pack,
    splits,
    unpacked,
)
from spbench.comm.transport import ByRank, Fill, Handle, Several, Transport, Work, behind
from spbench.results.heartbeat import Heartbeat
from spbench.workload.mesh import Groups

# torch 2.13 renames these two and deprecates the old names; a torch that was built without
# torch.distributed has neither.
_older_gather = getattr(dist, "all_gather_into_tensor", None)
_older_scatter = getattr(dist, "reduce_scatter_tensor", None)
_all_gather_single: Any = getattr(dist, "all_gather_single", _older_gather)
_reduce_scatter_single: Any = getattr(dist, "reduce_scatter_single", _older_scatter)
SMALL_BYTES = 4 * 2**20
"""An all-to-all of which a rank holds no more goes by gloo's own, of one packed buffer: posting
messages would take longer than the copies do (docs/decisions/0004)."""
MOST_ADDED = 4
"""Tensors of 32 bits that are added one to another; more are summed in one operation."""


def is_ready(_: int) -> None:
    """What is to leave is there."""


def available_backends() -> list[str]:
    """Those of gloo and nccl that this torch was built with."""
    if not dist.is_available():
        return []
    built = {"gloo": dist.is_gloo_available(), "nccl": dist.is_nccl_available()}
    return [name for name, is_built in built.items() if is_built]


class ProcessGroupTransport(Transport):
    """A torch process group."""

    def __init__(
        self,
        group: dist.ProcessGroup,
        heartbeat: Heartbeat | None = None,
        timeout: timedelta | None = None,
    ) -> None:
        """``timeout`` is the deadline of its transfers."""
        super().__init__(dist.get_rank(group), dist.get_world_size(group), heartbeat)
        self.group, self.timeout = group, timeout

    def _part(self, groups: Groups) -> Self:
        """Every rank takes part in making every group."""
        how: dict[str, Any] = {"timeout": self.timeout, "device_id": self.group.bound_device_id}
        made = [dist.new_group(list(members), **how) for members in groups]
        # The groups part the ranks: exactly one has this one.
        (mine,) = (part for part, group in zip(made, groups, strict=True) if self.rank in group)
        return type(self)(mine, timeout=self.timeout)

    def _all_reduce(self, x: Tensor) -> Handle:
        return Several([dist.all_reduce(x, group=self.group, async_op=True)])

    def _shift(self, received: Tensor, sent: Tensor, by: int) -> Handle:
        to, source = (self.rank + by) % self.size, (self.rank - by) % self.size
        return Several(self._post([(sent, to)], [(received, source)]))

    def _send(self, x: Tensor, to: int) -> Handle:
        return Several(self._post([(x, to)], []))

    def _receive(self, x: Tensor, source: int) -> Handle:
        return Several(self._post([], [(x, source)]))

    def _post(
        self, sends: list[tuple[Tensor, int]], receives: list[tuple[Tensor, int]]
    ) -> Sequence[Work]:
        """Point-to-point transfers of contiguous tensors, all posted before any is waited for."""
        ops = [dist.P2POp(dist.irecv, x, group=self.group, group_peer=of) for x, of in receives]
        ops += [dist.P2POp(dist.isend, x, group=self.group, group_peer=to) for x, to in sends]
        return dist.batch_isend_irecv(ops) if ops else []


@final
class NcclTransport(ProcessGroupTransport):
    """CUDA tensors over NVLink, PCIe or the network; each collective takes a flat buffer."""

    def _all_to_all(self, received: Cuts, sent: Cuts) -> Handle:
        """Without the sizes of even parts, so that torch takes NCCL's own all-to-all."""
        along, sizes = inner_dim(received, sent), (splits(received), splits(sent))
        flat, unpack = unpacked(received, along=along)
        packed = pack(sent, along)
        work = dist.all_to_all_single(flat, packed, *sizes, group=self.group, async_op=True)
        return Several([work], [unpack])

    def _all_gather(self, received: Cut, sent: Tensor) -> Handle:
        flat, unpack = unpacked([received])
        sent = sent.contiguous().view(-1)
        if (sizes := splits([received])) is None:
            work = _all_gather_single(flat, sent, group=self.group, async_op=True)
        else:
            # NCCL gathers parts of one length alone: of others each rank sends its own to all.
            parts = list(flat.split(sizes))
            if is_same_place(sent, parts[self.rank]):
                sent = sent.clone()  # messages to oneself have two ends
            work = dist.all_to_all(parts, [sent] * self.size, group=self.group, async_op=True)
        return Several([work], [unpack])

    def _reduce_scatter(self, received: Tensor, sent: Cut, fill: Fill) -> Handle:
        """Asks for all parts at once: they leave together, and one product is faster than many."""
        fill(sent.all_rows)
        flat = pack([sent])
        if (sizes := splits([sent])) is None:
            out = received.view(-1)
            return Several([_reduce_scatter_single(out, flat, group=self.group, async_op=True)])
        # Uneven: every rank's contribution to this part arrives by itself, and is summed up here.
        parts = received.new_empty(self.size, *received.shape)
        work = dist.all_to_all_single(
            parts.view(-1), flat, None, sizes, group=self.group, async_op=True
        )
        return Several([work], [lambda: torch.sum(parts, 0, out=received)])


class MessageTransport(Transport):
    """Makes an all-to-all, a gather and a reduce-scatter of one exchange of messages."""

    def in_parts(self, x: Tensor) -> bool:
        return not x.is_cuda  # what stands in for NCCL takes one buffer, as NCCL does

    @abstractmethod
    def _exchange(
        self,
        received: Sequence[Parts],
        sent: Sequence[Parts],
        run_dim: int,
        ready: Callable[[int], object] = is_ready,
    ) -> Handle:
        """``sent[r]`` goes to rank r; ``received[r]`` comes from it.

        Parameters
        ----------
        received, sent
            Parts by rank; a rank's own are copied.
        run_dim
            Parts are cut and joined along this dim on one side, along dim 0 on the other.
        ready
            Called with r before ``sent[r]`` leaves, and with this rank's own last.
        """

    def _all_to_all(self, received: Cuts, sent: Cuts) -> Handle:
        return self._exchange(by_rank(received), by_rank(sent), inner_dim(received, sent))

    def _all_gather(self, received: Cut, sent: Tensor) -> Handle:
        """Sends the same part to each rank."""
        return self._exchange(by_rank([received]), [[sent.contiguous()]] * self.size, 0)

    def _reduce_scatter(self, received: Tensor, sent: Cut, fill: Fill) -> Handle:
        """Each rank gets the others' parts. Few are added to its own, which is not moved."""
        # This rank's part is added where it lies; to itself it sends nothing.
        own, leaving = sent.part(self.rank), by_rank([sent])
        leaving[self.rank] = []
        # Of 16 bits each addition would round once more; torch's sum rounds once, in the end.
        most = MOST_ADDED if received.element_size() >= 4 else 2
        are_added = self.size <= most
        # Where parts are added one to another, one's own needs no place beside the others', and the
        # first of these comes where the sum is to be.
        places = max(0, self.size - 2) if are_added else self.size
        beside = received.new_empty(places, *received.shape)
        parts = [received, *beside][: self.size - 1] if are_added else list(beside)
        arriving: list[Parts] = [[part] for part in parts]
        if are_added:
            arriving.insert(self.rank, [])
        else:
            arriving[self.rank] = []

        def add() -> None:
            if are_added:
                _add([own, *parts], received)
            else:
                torch.sum(beside, 0, out=received)

        works = self._exchange(arriving, leaving, 0, lambda rank: fill(sent.rows(rank)))
        if not are_added:
            parts[self.rank].copy_(own)
        return Several([works], [add])


def _add(parts: Sequence[Tensor], into: Tensor) -> None:
    """Their sum, which takes two passes fewer over a tensor than torch's sum over a dim."""
    if len(parts) == 1:
        into.copy_(parts[0])
        return
    torch.add(parts[0], parts[1], out=into)
    for part in parts[2:]:
        into.add_(part)


@final
class GlooTransport(MessageTransport, ProcessGroupTransport):
    """CPU tensors over sockets."""

    def _all_to_all(self, received: Cuts, sent: Cuts) -> Handle:
        is_even = splits(received) is splits(sent) is None  # then all ranks send as much
        if not is_even or sum(cut.tensor.nbytes for cut in sent) > SMALL_BYTES:
            return super()._all_to_all(received, sent)
        along = inner_dim(received, sent)
        flat, unpack = unpacked(received, along=along)
        work = dist.all_to_all_single(flat, pack(sent, along), group=self.group, async_op=True)
        return Several([work], [unpack])

    def _exchange(
        self,
        received: Sequence[Parts],
        sent: Sequence[Parts],
        run_dim: int,
        ready: Callable[[int], object] = is_ready,
    ) -> Handle:
        # In step s each rank sends to the one s ahead and hears from the one s behind, so that
        # none is addressed by all at once. All receives are posted first: gloo sends nothing before
        # the other side has said where to.
        parts: dict[int, Several] = {}
        for source in behind(self.rank, self.size):
            messages, unpack = incoming(received[source], run_dim)
            works = self._post([], [(message, source) for message in messages])
            parts[source] = Several(works, [unpack])
        leaving: list[Work] = []
        for step in range(1, self.size):
            to = (self.rank + step) % self.size
            ready(to)
            messages = [*outgoing(sent[to], run_dim)]
            leaving += self._post([(message, to) for message in messages], [])
        # The rank's own part, while messages are under way.
        ready(self.rank)
        copy_joined(received[self.rank], sent[self.rank], run_dim)
        return ByRank(parts, Several(leaving))
