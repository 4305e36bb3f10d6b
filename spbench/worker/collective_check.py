"""Every collective with numbers that are known beforehand: what ``spbench doctor`` has ranks do.

    whole (R, C)   small whole numbers, which every rank knows without communication
    shards         cuts of the rows, and for an all-to-all of the columns; even, then uneven

Their sum is exact in float32, so what a rank receives must equal what it expects in every bit. Each
exchange has numbers of its own, so that memory left over from an earlier one is never right.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Self

import torch
from torch import Tensor

from spbench.comm.collectives import Collectives
from spbench.comm.group import Group
from spbench.results.link_report import Exchange, Exchanged
from spbench.worker.link_times import timed
from spbench.worker.observer import Observer
from spbench.worker.timer import Stopwatch
from spbench.workload.sharding import Shard
from spbench.workload.timed import TimedTransfer
from spbench.workload.traffic import Op

LARGE_BYTES = 16 * 2**20
TRIES = 3


@dataclass(frozen=True, kw_only=True)
class Example:
    """A tensor that every rank knows, and two ways to cut it."""

    whole: Tensor
    rows: Shard
    columns: Shard

    @classmethod
    def of(cls, ranks: int, number: int, device: torch.device, *, even: bool) -> Self:
        """Numbers below 251, a prime: on fewer than 251 ranks no two shards are equal."""
        # 3 ranks, uneven: 7 rows are 3, 2, 2 and 11 columns are 4, 4, 3; no rank is left without
        # any.
        rows, columns = (2 * ranks, 3 * ranks) if even else (2 * ranks + 1, 4 * ranks - 1)
        # 17, so that a number that an earlier exchange left in its place is another one.
        numbers = torch.arange(rows * columns, device=device) + 17 * number
        whole = (numbers % 251).to(torch.float32).view(rows, columns)
        cuts = Shard.even(0, rows, ranks), Shard.even(1, columns, ranks)
        return cls(whole=whole, rows=cuts[0], columns=cuts[1])


Pair = tuple[Tensor, Tensor]
"""What a rank received, and what it should have received."""


def _weight(rank: int) -> int:
    """A rank's factor in a sum: small, so that the sum over a thousand ranks is exact."""
    return rank % 4 + 1


def _all_to_all(comm: Collectives, example: Example) -> Pair:
    mine = comm.take(example.whole, example.rows).contiguous()
    (received,) = comm.switch(mine, before=example.rows, after=example.columns)
    return received, comm.take(example.whole, example.columns)


def _all_gather(comm: Collectives, example: Example) -> Pair:
    return comm.all_gather(comm.take(example.whole, example.rows), example.rows), example.whole


def _reduce_scatter(comm: Collectives, example: Example) -> Pair:
    received = comm.reduce_scatter(example.whole * _weight(comm.rank), example.rows)
    return received, comm.take(example.whole, example.rows) * sum(map(_weight, range(comm.size)))


def _all_reduce(comm: Collectives, example: Example) -> Pair:
    received = example.whole * _weight(comm.rank)
    comm.all_reduce_(received).wait()
    return received, example.whole * sum(map(_weight, range(comm.size)))


def _ring(comm: Collectives, example: Example) -> Pair:
    return comm.ring(comm.take(example.whole, example.rows), example.rows), example.whole


EXCHANGES: Mapping[str, Callable[[Collectives, Example], Pair]] = {
    "all_to_all": _all_to_all,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_reduce": _all_reduce,
    "p2p": _ring,
}


def exchange_all(group: Group, observer: Observer) -> Exchanged:
    """Every collective on both groups, then two of them with a large tensor against the clock. Each
    is a phase of the observer's, so that one that hangs can be named."""
    exchanges: list[Exchange] = []
    for whose, cut, op in product(("strategy", "gradients"), ("even", "uneven"), EXCHANGES):
        comm = Collectives(getattr(group.transports, whose))
        example = Example.of(group.size, len(exchanges), group.device, even=cut == "even")
        name = f"{op} of {cut} shards ({whose} group)"
        with observer.phase(name):
            wrong = difference(*EXCHANGES[op](comm, example))
        exchanges.append(Exchange(name=name, wrong=wrong))
    with observer.phase("16 MiB against the clock"):
        return Exchanged(rank=group.rank, exchanges=exchanges, sent_bytes_per_s=rates(group))


def difference(received: Tensor, expected: Tensor) -> str:
    """How the two tensors differ, in words; blank if they do not."""
    if received.shape != expected.shape:
        return f"came as {tuple(received.shape)} instead of {tuple(expected.shape)}"
    differs = (received != expected).flatten()
    count = int(differs.sum())
    if not count:
        return ""
    # Of all that differs one number is shown, in the order of memory.
    first = int(differs.nonzero()[0])
    wrong, right = (float(x.flatten()[first]) for x in (received, expected))
    share = f"{count:,} of {differs.numel():,} numbers differ"
    return f"{share}, the first is {wrong:g} instead of {right:g}"


def rates(group: Group, now_s: Callable[[], float] = time.perf_counter) -> dict[str, float]:
    """Bytes that this rank sends in a second, by operation: the best of three tries."""
    watch, length = Stopwatch(group=group, now_s=now_s), LARGE_BYTES // 4
    lengths: dict[Op, int] = {
        "all_reduce": length,
        # ``elements`` are those that leave the rank: of 16 MiB its own part stays.
        "all_to_all": length * (group.size - 1) // group.size,
    }
    bytes_per_s: dict[str, float] = {}
    for op, sent in lengths.items():
        transfer = TimedTransfer(op=op, elements=[sent] * group.size, dtype="float32")
        timing = timed(transfer, group, watch, most=TRIES)
        bytes_per_s[op] = timing.sent_bytes / (min(timing.ms) / 1e3)
    return bytes_per_s
