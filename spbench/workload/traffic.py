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

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, cached_property
from typing import Literal, Self

from spbench.workload.block import CrossAttention, Sublayer
from spbench.workload.mesh import ALL, Groups, Members, Mesh
from spbench.workload.sharding import Sizes
from spbench.workload.workload import Workload

Op = Literal["all_to_all", "all_gather", "reduce_scatter", "all_reduce", "p2p"]
Phase = Literal["forward", "backward", "gradients"]
Kind = tuple[Phase, Op, str]
"""A phase, an operation, and the axis of the mesh that it goes over."""


Stream = tuple[int, Sizes]
"""Bytes of a whole tensor, and the positions of it that each rank holds."""
Count = dict[Kind, int | Fraction]
"""Bytes sent by one rank in one step."""
OPS: tuple[Op, ...] = ("all_to_all", "all_gather", "reduce_scatter", "all_reduce", "p2p")
PHASES: tuple[Phase, ...] = ("forward", "backward", "gradients")


def all_reduce_bytes(whole_bytes: int, ranks: int) -> Fraction:
    """A fraction where the tensor does not divide by the ranks; a step's sum is rounded once."""
    return Fraction(2 * (ranks - 1) * whole_bytes, ranks)


def _shares(whole_bytes: int, parts: Sequence[int], total: int) -> tuple[Fraction, ...]:
    """Each rank's part of the bytes; equal parts are one object."""
    shares = {part: Fraction(whole_bytes * part, total or 1) for part in set(parts)}
    return tuple(shares[part] for part in parts)


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """One collective: its operation, its phase, and the bytes that each rank sends.

    Over an axis of a mesh there is one in each group, at the same time.
    """

    op: Op
    sent: tuple[Fraction, ...]
    phase: Phase = "forward"
    axis: str = ALL

    @classmethod
    def along(cls, axis: str, groups: Groups, of_groups: Sequence[Self]) -> Self:
        """The collectives of all groups of ``axis``, each over the ranks of its group."""
        ((op, phase, own),) = {(each.op, each.phase, each.axis) for each in of_groups}
        by_rank = [Fraction(0)] * sum(map(len, groups))
        for group, transfer in zip(groups, of_groups, strict=True):
            for rank, sent in zip(group, transfer.sent, strict=True):
                by_rank[rank] = sent
        return cls(op=op, sent=tuple(by_rank), phase=phase, axis=axis if own == ALL else own)

    @classmethod
    def all_to_all(cls, whole_bytes: int, before: Sizes, after: Sizes) -> Self:
        """A tensor sharded as ``before`` becomes sharded as ``after`` along another dim."""
        whole = sum(after)
        parts = [a * (whole - b) for a, b in zip(before, after, strict=True)]
        return cls(op="all_to_all", sent=_shares(whole_bytes, parts, sum(before) * whole))

    @classmethod
    def all_gather(cls, whole_bytes: int, sizes: Sizes) -> Self:
        parts = [(len(sizes) - 1) * held for held in sizes]
        return cls(op="all_gather", sent=_shares(whole_bytes, parts, sum(sizes)))

    @classmethod
    def reduce_scatter(cls, whole_bytes: int, sizes: Sizes) -> Self:
        whole = sum(sizes)
        parts = [whole - kept for kept in sizes]
        return cls(op="reduce_scatter", sent=_shares(whole_bytes, parts, whole))

    @classmethod
    def ring(cls, whole_bytes: int, sizes: Sizes) -> Self:
        """Every block once round the ring: N - 1 shifts."""
        whole = sum(sizes)
        parts = [whole - successor for successor in sizes[1:] + sizes[:1]]
        return cls(op="p2p", sent=_shares(whole_bytes, parts, whole))

    @classmethod
    def all_reduce(cls, whole_bytes: int, ranks: int) -> Self:
        return cls(op="all_reduce", sent=(all_reduce_bytes(whole_bytes, ranks),) * ranks)

    @classmethod
    def together(cls, *transfers: Self) -> Self:
        """Several tensors sent by one collective."""
        ((op, axis),) = {(transfer.op, transfer.axis) for transfer in transfers}
        kinds = kinds_of_ranks(transfers)
        sums = {rank: sum((x.sent[rank] for x in transfers), Fraction(0)) for rank in set(kinds)}
        return cls(op=op, sent=tuple(sums[kind] for kind in kinds), axis=axis)

    @cached_property
    def most(self) -> Fraction:
        """Bytes of the busiest rank."""
        return max({id(sent): sent for sent in self.sent}.values())

    def during(self, phase: Phase) -> Self:
        return replace(self, phase=phase)


Traffic = tuple[list[Transfer], list[Transfer]]
"""Transfers of one sublayer in forward and in backward."""


def along(axis: str, groups: Groups, of_group: Callable[[Members], Traffic]) -> Traffic:
    """What ``of_group`` says of the ranks of a group, in all groups of ``axis`` at once."""
    ways = zip(*(of_group(members) for members in groups), strict=True)
    forward, backward = (
        [Transfer.along(axis, groups, each) for each in zip(*way, strict=True)] for way in ways
    )
    return forward, backward


def kinds_of_ranks(transfers: Sequence[Transfer]) -> list[int]:
    """For each rank the first one that sends the same in each of these transfers."""
    first: dict[tuple[int, ...], int] = {}
    by_rank = zip(*(transfer.sent for transfer in transfers), strict=True)
    return [first.setdefault(tuple(map(id, sent)), rank) for rank, sent in enumerate(by_rank)]


def along_held(axis: str, mesh: Mesh, held: Sizes, of_sizes: Callable[[Sizes], Traffic]) -> Traffic:
    """What ``of_sizes`` says of what the ranks of a group hold, in all groups of ``axis``.

    Groups that hold as much send the same, and are worked out once.
    """
    known = cache(of_sizes)
    return along(axis, mesh.groups(axis), lambda group: known(tuple(held[at] for at in group)))


def streams(
    sublayer: Sublayer, workload: Workload, axis: str, image: Sizes, text: Sizes
) -> list[Stream]:
    """What passes through ``sublayer``: the activation, and text unless it is a cross-attention.

    ``image`` and ``text``: positions of ``axis`` and of text that ranks hold, all or a group.
    """
    passing = [(workload.activation_bytes // workload.axes[axis] * sum(image), image)]
    if workload.text and not isinstance(sublayer, CrossAttention):
        passing.append((workload.activation_bytes // workload.tokens * sum(text), text))
    return passing


def waited_bytes(transfers: Iterable[Transfer]) -> float:
    """Bytes that ranks wait for: the busiest rank's of each transfer but the gradients' sum."""
    return float(sum(each.most for each in transfers if each.phase != "gradients"))


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
    return waited_bytes(forward + backward)
