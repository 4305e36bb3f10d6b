"""One run of one test of nccl-tests: which operation, on which ranks of which hosts, how long."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from spbench.errors import Failure
from spbench.text import counted
from spbench.workload.traffic import Op

NAMES: Mapping[str, Op] = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "sendrecv": "p2p",
}
"""Operations by a test's name without its ending, as in all_reduce_perf."""
OTHERS = ("alltoallv", "broadcast", "reduce", "gather", "scatter", "hypercube")
"""Tests of what no strategy does."""
# The longest first: reduce_scatter is neither reduce nor scatter. With a letter beside it, it is
# another name: alltoallv is not alltoall.
IN_A_FILE_S_NAME = re.compile(
    f"(?<![a-z])({'|'.join(sorted((*NAMES, *OTHERS), key=len, reverse=True))})(?![a-z])"
)
UNKNOWN = "N/A"
"""What nccl-tests prints of errors where it did not look for them."""


@final
@dataclass(frozen=True, kw_only=True)
class Seat:
    """Where a rank is."""

    host: str
    device: int
    group: int
    """Its number by NCCL_TESTS_SPLIT: ranks of one group send to one another alone."""


@final
@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of one test."""

    path: Path
    place: str
    """File, and the line where its header starts."""
    op: Op
    seats: Sequence[Seat]
    """By rank."""
    points: Sequence[tuple[float, float]]
    """What one rank sends, in bytes, and seconds."""

    @property
    def ranks(self) -> int:
        """How many ranks it is of."""
        return len(self.seats)

    @property
    def hosts(self) -> list[str]:
        """Their hosts, by the first rank on each."""
        return list(dict.fromkeys(seat.host for seat in self.seats))

    @property
    def bus_gb_per_s(self) -> float:
        """busbw of the largest message."""
        sent, seconds = self.largest
        return sent / seconds / 1e9

    @property
    def largest(self) -> tuple[float, float]:
        """Bytes that a rank sends of the largest message, and its seconds."""
        return max(self.points)


def seated(place: str, seats: Mapping[int, Seat]) -> Sequence[Seat]:
    """The seats of all ranks of a run, each on a device of its own. Raises Failure where some are
    not listed, where ranks share a device, and for several groups of them."""
    ranks = len(seats)
    if ranks < 2:
        raise Failure(f"{place}: lists {counted(ranks, 'rank')}; links need 2 or more")
    if set(seats) != set(range(ranks)):
        listed = ", ".join(map(str, sorted(seats)))
        raise Failure(f"{place}: lists ranks {listed}, and not all of the run, from 0 on")
    groups = sorted({seat.group for seat in seats.values()})
    if len(groups) > 1:
        raise Failure(
            f"{place}: its ranks are in groups {', '.join(map(str, groups))} (NCCL_TESTS_SPLIT), "
            f"which send at the same time; a level has times of one group alone: run it without, "
            f"on as many ranks as a group has"
        )
    on_device: dict[tuple[str, int], int] = {}
    for rank, seat in sorted(seats.items()):
        other = on_device.setdefault((seat.host, seat.device), rank)
        if other != rank:
            raise Failure(
                f"{place}: ranks {other} and {rank} are both on device {seat.device} of host "
                f"{seat.host!r}: several hosts of one name (nccl-tests cuts names at the first "
                f"dot), or processes that see one device each; give hosts names of their own, "
                f"and let every process see all devices"
            )
    return tuple(seats[rank] for rank in range(ranks))


def factor(op: Op, ranks: int) -> float:
    """busbw over algbw: what a rank sends of a buffer."""
    return {"all_reduce": 2 * (ranks - 1) / ranks, "p2p": 1.0}.get(op, (ranks - 1) / ranks)


def operation(place: str, test: str) -> Op:
    """The operation of a test by the name that it prints, alltoall_perf for one. Raises Failure."""
    name = test.removesuffix("_perf")
    if name not in NAMES:
        raise Failure(f"{place}: {test} is a test of what no strategy does; {KNOWN}")
    return NAMES[name]


def named(path: Path) -> Op:
    """The operation by which a file is named, where the test prints no name. Raises Failure."""
    found = set(IN_A_FILE_S_NAME.findall(path.name.lower()))
    if len(found) != 1:
        raise Failure(
            f"{path}: which test is it? This output has no name of one; name the file by it, as in "
            f"all_gather_perf.log. {KNOWN}"
        )
    return operation(str(path), *found)


KNOWN = f"Known are {', '.join(NAMES)}"
