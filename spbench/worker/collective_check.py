"""Every collective with numbers that are known beforehand: what ``spbench doctor`` has ranks do.

    whole (R, C)   small whole numbers, the same on every rank without anything being sent
    shards         of the rows, and for an all-to-all of the columns; even, then uneven

A sum of them is exact in float32, so what comes must equal what was to come in every bit. Each
exchange has numbers of its own: memory that still holds the right ones from before, and into
which nothing came, would else look right.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from spbench.comm.collectives import Collectives
from spbench.comm.group import Group
from spbench.results.collective_result import Exchange, Exchanged
from spbench.worker.observer import Observer
from spbench.workload.sharding import Shard

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
        """Numbers below 251, a prime: on fewer ranks than that no two shards are alike."""
        rows, columns = (2 * ranks, 3 * ranks) if even else (2 * ranks + 1, 4 * ranks - 1)
        numbers = torch.arange(rows * columns, device=device) + 17 * number
        whole = (numbers % 251).to(torch.float32).view(rows, columns)
        cuts = Shard.even(0, rows, ranks), Shard.even(1, columns, ranks)
        return cls(whole=whole, rows=cuts[0], columns=cuts[1])


Outcome = tuple[Tensor, Tensor]
"""What came, and what was to come."""


def _weight(rank: int) -> int:
    """Of a rank's part in a sum: small, so that a thousand of them are exact."""
    return rank % 4 + 1


def _total(ranks: int) -> int:
    return sum(map(_weight, range(ranks)))


def _all_to_all(comm: Collectives, of: Example) -> Outcome:
    mine = comm.take(of.whole, of.rows).contiguous()
    (came,) = comm.switch(mine, before=of.rows, after=of.columns)
    return came, comm.take(of.whole, of.columns)


def _all_gather(comm: Collectives, of: Example) -> Outcome:
    return comm.all_gather(comm.take(of.whole, of.rows), of.rows), of.whole


def _reduce_scatter(comm: Collectives, of: Example) -> Outcome:
    came = comm.reduce_scatter(of.whole * _weight(comm.rank), of.rows)
    return came, comm.take(of.whole, of.rows) * _total(comm.size)


def _all_reduce(comm: Collectives, of: Example) -> Outcome:
    came = of.whole * _weight(comm.rank)
    comm.all_reduce_(came).wait()
    return came, of.whole * _total(comm.size)


def _ring(comm: Collectives, of: Example) -> Outcome:
    mine = comm.take(of.whole, of.rows)
    blocks = {owner: block.clone() for owner, block in comm.ring(mine, of.rows)}
    return torch.cat([blocks[rank] for rank in range(comm.size)], of.rows.dim), of.whole


EXCHANGES: Mapping[str, Callable[[Collectives, Example], Outcome]] = {
    "all_to_all": _all_to_all,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_reduce": _all_reduce,
    "ring": _ring,
}


def exchange_all(group: Group, observer: Observer) -> Exchanged:
    """Every collective on both groups, then two of them with a large tensor against the clock.

    Each is a phase of the observer's, so that one that hangs can be named.
    """
    found: list[Exchange] = []
    for whose, transport in (
        ("strategy", group.transports.strategy),
        ("gradients", group.transports.gradients),
    ):
        comm = Collectives(transport)
        for even in (True, False):
            for op, run in EXCHANGES.items():
                name = f"{op} of {'even' if even else 'uneven'} shards ({whose} group)"
                example = Example.of(group.size, len(found), group.device, even=even)
                with observer.phase(name):
                    found.append(Exchange(name=name, wrong=difference(*run(comm, example))))
    with observer.phase("16 MiB against the clock"):
        return Exchanged(rank=group.rank, exchanges=found, sent_bytes_per_s=rates(group))


def difference(came: Tensor, wanted: Tensor) -> str:
    """In words; blank if there is none."""
    if came.shape != wanted.shape:
        return f"came as {tuple(came.shape)} instead of {tuple(wanted.shape)}"
    differs = (came != wanted).flatten()
    count = int(differs.sum())
    if not count:
        return ""
    first = int(differs.nonzero()[0])
    one, other = (float(x.flatten()[first]) for x in (came, wanted))
    many = f"{count:,} of {differs.numel():,} numbers differ"
    return f"{many}, the first is {one:g} instead of {other:g}"


def rates(group: Group, now_s: Callable[[], float] = time.perf_counter) -> dict[str, float]:
    """Bytes that this rank sends in a second, by operation: the best of three tries."""
    transport = group.transports.strategy
    length = LARGE_BYTES // 4 // group.size
    sent, received = (torch.zeros(length * group.size, device=group.device) for _ in range(2))
    gone, come = ([[part] for part in whole.split(length)] for whole in (sent, received))
    large: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: transport.all_reduce(sent).wait(),
        "all_to_all": lambda: transport.all_to_all(come, gone, 0).wait(),
    }
    found = {}
    for op, run in large.items():
        seconds = [_seconds(run, group, now_s) for _ in range(1 + TRIES)][1:]
        transport.reset()
        run()
        found[op] = float(sum(transport.sent.values())) / min(seconds)
    transport.reset()
    return found


def _seconds(run: Callable[[], object], group: Group, now_s: Callable[[], float]) -> float:
    group.barrier()
    start = now_s()
    run()
    group.synchronise()
    return now_s() - start
