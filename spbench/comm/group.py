"""Joins a rank with the others, and lets ranks agree on numbers and exchange texts.

Ranks that spbench starts on one machine meet in a file; for others the launcher (or torchrun, or
Slurm) sets RANK, WORLD_SIZE, MASTER_ADDR and the like, which init_process_group reads. What ranks
say to each other is bytes, never a pickled object, which could run code.

Two process groups hold the same ranks: one for the strategy, one for the gradient all-reduce, so
that neither queues behind the other.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import timedelta
from typing import final

import torch
import torch.distributed as dist

from spbench.comm.collectives import Collectives
from spbench.comm.fake import silent_transports
from spbench.comm.kv_store import KeyValueStoreError, MeetingFile
from spbench.comm.nccl_gloo import GlooTransport, NcclTransport
from spbench.comm.packing import Cut
from spbench.comm.transport import Transports
from spbench.results.heartbeat import Heartbeat
from spbench.workload.sharding import Shard


class Group(ABC):
    """The ranks of a case: this rank's transports to the others, and what all must agree upon."""

    backend: str

    def __init__(
        self, device: torch.device, transports: Transports, heartbeat: Heartbeat | None = None
    ) -> None:
        """Each ``barrier`` and ``largest`` shows in ``heartbeat``: behind the last transfer, or in
        a silent step, nothing else shows how far a rank has come."""
        self.device, self.transports = device, transports
        self._heartbeat = heartbeat or Heartbeat()

    @property
    def rank(self) -> int:
        return self.transports.strategy.rank

    @property
    def size(self) -> int:
        return self.transports.strategy.size

    def synchronise(self) -> None:
        """Wait for this rank's device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def largest(self, values: Sequence[float]) -> list[float]:
        """Element by element, the largest over the ranks."""
        self._heartbeat.transfer()
        return self._largest(values)

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """Every rank's values, by rank: as many of each."""
        self._heartbeat.transfer()
        return self._gather(values)

    def barrier(self) -> None:
        """Wait for every rank."""
        self._heartbeat.transfer()
        self._meet()

    @abstractmethod
    def _largest(self, values: Sequence[float]) -> list[float]: ...

    @abstractmethod
    def _gather(self, values: Sequence[float]) -> list[list[float]]: ...

    @abstractmethod
    def _meet(self) -> None: ...

    @abstractmethod
    def gather_text(self, text: str) -> list[str]:
        """Every rank's text, by rank."""

    @abstractmethod
    def close(self) -> None: ...


@final
class ProcessGroup(Group):
    """Ranks that are processes: NCCL for CUDA devices, gloo for CPUs."""

    def __init__(
        self,
        device: torch.device,
        timeout_s: float,
        heartbeat: Heartbeat | None = None,
        meeting: MeetingFile | None = None,
    ) -> None:
        if device.type == "cuda":
            torch.cuda.set_device(device)
        timeout = timedelta(seconds=timeout_s)
        self.backend = "nccl" if device.type == "cuda" else "gloo"
        # NCCL connects here, not in the first transfer of a step.
        eager = device if device.type == "cuda" else None
        where = {} if meeting is None else meeting.arguments(timeout)
        dist.init_process_group(self.backend, timeout=timeout, device_id=eager, **where)
        world = dist.group.WORLD
        # The same ranks once more: sums of gradients queue here, beside what the strategy sends.
        second = dist.new_group(timeout=timeout, device_id=eager)
        assert world is not None and second is not None
        network = NcclTransport if device.type == "cuda" else GlooTransport
        strategy, gradients = (network(ranks, heartbeat, timeout) for ranks in (world, second))
        super().__init__(device, Transports(strategy=strategy, gradients=gradients), heartbeat)
        self._token = torch.zeros(1, device=device)

    def _largest(self, values: Sequence[float]) -> list[float]:
        # Counts of bytes are exact in float64 up to 2^53; in float32 they are not above 16 MiB.
        shared = torch.tensor(list(values), dtype=torch.float64, device=self.device)
        dist.all_reduce(shared, op=dist.ReduceOp.MAX)
        return list(shared.tolist())

    def _gather(self, values: Sequence[float]) -> list[list[float]]:
        mine = torch.tensor(list(values), dtype=torch.float64, device=self.device)
        by_rank = [torch.empty_like(mine) for _ in range(self.size)]
        dist.all_gather(by_rank, mine)
        return [list(of_rank.tolist()) for of_rank in by_rank]

    def _meet(self) -> None:
        dist.all_reduce(self._token)
        self.synchronise()

    def gather_text(self, text: str) -> list[str]:
        mine = text.encode()
        # An all-gather has parts of one length: lengths first, then texts filled up to the longest.
        sizes = [int(size) for (size,) in self._gather([len(mine)])]
        if not any(sizes):
            return [""] * self.size
        # A bytearray, since torch warns of memory that nobody may write to.
        padded = torch.frombuffer(bytearray(mine.ljust(max(sizes), b"\0")), dtype=torch.uint8)
        by_rank = [torch.empty_like(padded, device=self.device) for _ in sizes]
        dist.all_gather(by_rank, padded.to(self.device))
        texts = zip(by_rank, sizes, strict=True)
        return [bytes(text[:size].tolist()).decode() for text, size in texts]

    def warm(self) -> None:
        """Runs each kind of collective once on each group, so that none allocates later."""
        for transport in (self.transports.strategy, self.transports.gradients):
            # One number for each rank is enough to set up each kind of collective.
            mine, whole = self._token.clone(), torch.zeros(self.size, device=self.device)
            shard = Shard.even(0, self.size, self.size)
            parts, apart = Cut(whole, 0, shard), Cut(torch.zeros_like(whole), 0, shard)
            transport.all_to_all([apart], [parts]).wait()
            transport.all_gather(parts, mine).wait()
            transport.reduce_scatter(mine, parts).wait()
            transport.all_reduce(mine).wait()
            Collectives(transport).ring(mine, shard)
            transport.reset()
        self.synchronise()

    def close(self) -> None:
        """Only after success: after an error it may wait for ranks that are gone."""
        dist.destroy_process_group()


@final
class ShareOfGroup(Group):
    """Rank 0 of a group without any other rank: it computes its share and sends nothing."""

    backend = "fake"

    def __init__(self, device: torch.device, size: int, heartbeat: Heartbeat | None = None) -> None:
        super().__init__(device, silent_transports(0, size, heartbeat), heartbeat)

    def _largest(self, values: Sequence[float]) -> list[float]:
        return list(values)

    def _gather(self, values: Sequence[float]) -> list[list[float]]:
        return [list(values)]

    def _meet(self) -> None:
        self.synchronise()

    def gather_text(self, text: str) -> list[str]:
        return [text]

    def close(self) -> None:
        return None


OF_GLOO = re.compile(
    r"""
    (Gloo\ \w+\ failed\ with\ )?                   # where ProcessGroupGloo tells it once more
    \[(enforce\ fail\ at\ )?[^]]*/gloo/[\w/]+\.(cc|h):\d+\]   # the place in gloo's code
    """,
    re.VERBOSE | re.ASCII,
)
"""How an error of gloo begins, as in ``[/build/gloo/gloo/transport/tcp/pair.cc:553] Connection
closed by peer``: torch raises it as a plain RuntimeError."""
OF_NCCL = re.compile(r"(\[Rank \d+\]:? )?NCCL\b", re.ASCII)
"""How one of NCCL begins where torch raises it as a plain RuntimeError, not as DistBackendError."""
OF_FILE_STORE = "Wait timeout"
"""All that torch says where a rank waits in vain for another at the file where they meet."""


def is_broken_connection(error: BaseException) -> bool:
    """Whether an exception says that another rank is gone or does not answer.

    By its type, and for the plain RuntimeError of torch's backends by how it begins: what else an
    error says, as the path of a file, may hold any word.
    """
    if isinstance(error, (dist.DistError, KeyValueStoreError, ConnectionError)):
        return True
    # A subclass has a meaning of its own: torch.OutOfMemoryError is a RuntimeError, too.
    if type(error) is not RuntimeError:
        return False
    said = str(error)
    return bool(OF_GLOO.match(said) or OF_NCCL.match(said)) or said == OF_FILE_STORE
