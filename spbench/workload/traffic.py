"""Predicted bytes of collectives: the formulas of the papers, exact for uneven shards.

A Transfer states the bytes that each rank sends. ``Transport`` counts the buffers that it is
handed; a conformance test and every measured row compare the two. All figures are bytes that
one rank sends, never bytes that it receives.

    all_to_all       b_r (1 - a_r/A)   keeps its own part of what it holds
    all_gather       (N-1) b_r         its shard to every other rank
    reduce_scatter   M - b_r           every part but its own
    ring             M - b_(r+1)       passes on each block but its successor's
    all_reduce       2 (N-1)/N M       a reduce-scatter and an all-gather

with M the whole tensor and b_r = M x (rank r's positions) / (all positions).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal, Self

from spbench.workload.sharding import Sizes, shard_sizes
from spbench.workload.workload import Workload

Op = Literal["all_to_all", "all_gather", "reduce_scatter", "all_reduce", "p2p"]
Phase = Literal["forward", "backward", "gradients"]
Count = dict[tuple[Phase, Op], Fraction]
"""Bytes sent by one rank in one step, by phase and operation."""

OPS: tuple[Op, ...] = ("all_to_all", "all_gather", "reduce_scatter", "all_reduce", "p2p")
PHASES: tuple[Phase, ...] = ("forward", "backward", "gradients")


def all_reduce_bytes(whole_bytes: int, ranks: int) -> Fraction:
    """A fraction where the tensor does not divide by the ranks; a step's sum is rounded once."""
    return Fraction(2 * (ranks - 1) * whole_bytes, ranks)


def _shares(whole_bytes: int, parts: Iterable[int], total: int) -> tuple[Fraction, ...]:
    return tuple(Fraction(whole_bytes * part, total) for part in parts)


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """One collective: its operation, its phase, and the bytes that each rank sends."""

    op: Op
    sent: tuple[Fraction, ...]
    phase: Phase = "forward"

    @classmethod
    def all_to_all(cls, whole_bytes: int, before: Sizes, after: Sizes) -> Self:
        """A tensor sharded as ``before`` becomes sharded as ``after`` along another dim."""
        parts = [a * (sum(after) - b) for a, b in zip(before, after, strict=True)]
        return cls(op="all_to_all", sent=_shares(whole_bytes, parts, sum(before) * sum(after)))

    @classmethod
    def all_gather(cls, whole_bytes: int, sizes: Sizes) -> Self:
        parts = [(len(sizes) - 1) * held for held in sizes]
        return cls(op="all_gather", sent=_shares(whole_bytes, parts, sum(sizes)))

    @classmethod
    def reduce_scatter(cls, whole_bytes: int, sizes: Sizes) -> Self:
        parts = [sum(sizes) - kept for kept in sizes]
        return cls(op="reduce_scatter", sent=_shares(whole_bytes, parts, sum(sizes)))

    @classmethod
    def ring(cls, whole_bytes: int, sizes: Sizes) -> Self:
        """Every block once round the ring: N - 1 shifts."""
        parts = [sum(sizes) - successor for successor in sizes[1:] + sizes[:1]]
        return cls(op="p2p", sent=_shares(whole_bytes, parts, sum(sizes)))

    @classmethod
    def all_reduce(cls, whole_bytes: int, ranks: int) -> Self:
        return cls(op="all_reduce", sent=(all_reduce_bytes(whole_bytes, ranks),) * ranks)

    @classmethod
    def together(cls, *transfers: Self) -> Self:
        """Several tensors sent by one collective."""
        (op,) = {transfer.op for transfer in transfers}
        by_rank = zip(*(transfer.sent for transfer in transfers), strict=True)
        return cls(op=op, sent=tuple(sum(parts, Fraction(0)) for parts in by_rank))

    def during(self, phase: Phase) -> Self:
        return replace(self, phase=phase)


Traffic = tuple[list[Transfer], list[Transfer]]
"""Transfers of one sublayer in forward and in backward."""


def count(transfers: Iterable[Transfer], rank: int) -> Count:
    """Bytes that ``rank`` sends in all transfers, without operations that move nothing."""
    total: Count = {}
    for transfer in transfers:
        if transfer.sent[rank]:
            key = (transfer.phase, transfer.op)
            total[key] = total.get(key, Fraction(0)) + transfer.sent[rank]
    return total


def by_phase(total: Count) -> dict[str, int]:
    """Bytes of each phase, 0 where nothing is sent."""
    return {phase: round(sum(n for (p, _), n in total.items() if p == phase)) for phase in PHASES}


def by_op(total: Count) -> dict[str, int]:
    """Bytes of each operation, 0 where it is not used."""
    return {op: round(sum(n for (_, o), n in total.items() if o == op)) for op in OPS}


def by_call(calls: Mapping[tuple[Phase, Op], int]) -> dict[str, int]:
    """Calls of each operation in use, in a fixed order, as {"forward.all_to_all": 55}."""
    keys = [(phase, op) for phase in PHASES for op in OPS]
    return {f"{phase}.{op}": calls[phase, op] for phase, op in keys if (phase, op) in calls}


def by_busiest(transfers: Sequence[Transfer], ranks: int) -> dict[str, int]:
    """Bytes of each phase's busiest rank, as in a row of runs.csv."""
    by_rank = [by_phase(count(transfers, rank)) for rank in range(ranks)]
    return {phase: max(sent[phase] for sent in by_rank) for phase in PHASES}


def switch(workload: Workload, before: str, after: str, ranks: int) -> Transfer:
    """The all-to-all that moves the activation's sharding from one axis to another."""
    sizes = (shard_sizes(workload.axes[axis], ranks) for axis in (before, after))
    return Transfer.all_to_all(workload.activation_bytes, *sizes)


def bytes_in_a_step(
    workload: Workload, forward: list[Transfer], backward: list[Transfer], *, repeated: bool = True
) -> float:
    """Bytes that a step waits for: the sum over transfers of the busiest rank's.

    Training includes backward and, if forward is ``repeated`` under checkpointing, forward again.
    """
    if workload.mode == "forward":
        backward = []
    elif workload.checkpointing == "full" and repeated:
        backward = forward + backward
    return float(sum(max(transfer.sent) for transfer in forward + backward))
