"""Bytes that ranks send in all transfers of a step: by phase, by operation, by axis of the mesh.

A step has thousands of transfers of a few kinds, and thousands of ranks that send the same: equal
ones are the same objects, and what is worked out for all looks at each kind once.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from fractions import Fraction

from spbench.workload.mesh import ALL
from spbench.workload.traffic import OPS, PHASES, Count, Kind, Transfer, kinds_of_ranks

Tally = list[tuple[Transfer, int]]
"""Transfers, each once, and how often it comes."""


def tally(transfers: Iterable[Transfer]) -> Tally:
    """Each transfer once: a stack repeats a few."""
    transfers = list(transfers)
    known = {id(transfer): transfer for transfer in transfers}
    return [(known[same], times) for same, times in Counter(map(id, transfers)).items()]


def count(transfers: Iterable[Transfer], rank: int) -> Count:
    """Bytes that ``rank`` sends in all transfers, without operations that move nothing."""
    return _count(tally(transfers), rank)


def _count(tallied: Tally, rank: int) -> Count:
    total: Count = {}
    for transfer, times in tallied:
        if transfer.sent[rank]:
            key = (transfer.phase, transfer.op, transfer.axis)
            total[key] = total.get(key, Fraction(0)) + times * transfer.sent[rank]
    return total


def by_phase(total: Count) -> dict[str, int]:
    """Bytes of each phase, 0 where nothing is sent."""
    return {phase: _bytes_of(total, phase) for phase in PHASES}


def by_op(total: Count) -> dict[str, int]:
    """Bytes of each operation, 0 where it is not used."""
    return {op: _bytes_of(total, op) for op in OPS}


def by_axis(total: Count) -> dict[str, int]:
    """Bytes over each axis of a mesh that something is sent over, and over all its ranks."""
    return {axis: _bytes_of(total, axis) for axis in sorted({axis for _, _, axis in total})}


def _bytes_of(total: Count, name: str) -> int:
    return round(sum(n for kind, n in total.items() if name in kind))


def by_call(calls: Mapping[Kind, int]) -> dict[str, int]:
    """Calls of each kind in a fixed order, as {"forward.all_to_all": 55}, with an axis behind."""

    def place(kind: Kind) -> tuple[int, int, str]:
        return PHASES.index(kind[0]), OPS.index(kind[1]), kind[2]

    ordered = sorted(calls, key=place)
    return {".".join(part for part in kind if part != ALL): calls[kind] for kind in ordered}


def by_busiest(transfers: Iterable[Transfer]) -> dict[str, int]:
    """Bytes of each phase's busiest rank, as in a row of runs.csv."""
    tallied = tally(transfers)
    kinds = set(kinds_of_ranks([transfer for transfer, _ in tallied]))
    by_kind = [by_phase(_count(tallied, rank)) for rank in kinds]
    return {phase: max((sent[phase] for sent in by_kind), default=0) for phase in PHASES}


def busiest_rank(transfers: Iterable[Transfer]) -> int:
    """The first rank that sends the most in all these transfers together; 0 without any."""
    tallied = tally(transfers)
    kinds = sorted(set(kinds_of_ranks([transfer for transfer, _ in tallied])))
    return max(kinds, key=lambda rank: sum(_count(tallied, rank).values()), default=0)
