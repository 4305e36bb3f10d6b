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

A step's transfers are, sublayer by sublayer, the switch to its axis, and its own, back and forth.
There are thousands of a few kinds, and thousands of ranks that send the same: equal ones are the
same objects, and what is worked out for all looks at each kind once.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, cached_property, lru_cache
from itertools import accumulate
from typing import Literal, Self

from spbench.workload.block import CrossAttention, Place, Sublayer
from spbench.workload.fields import DTYPE_BYTES
from spbench.workload.flops import cut_parameters, is_modulated, parameters
from spbench.workload.mesh import ALL, Groups, Members, Mesh
from spbench.workload.sharding import Shard, Sizes
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
    # A tensor without positions has total 0, and sends nothing: any divisor will do.
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
    of_edges: bool = False
    """Whether these messages are what others see of a rank's positions, and do not go round."""

    @classmethod
    def along(cls, axis: str, groups: Groups, of_groups: Sequence[Self]) -> Self:
        """The collectives of all groups of ``axis``, each over the ranks of its group."""
        ((op, phase, own),) = {(group.op, group.phase, group.axis) for group in of_groups}
        by_rank = [Fraction(0)] * sum(map(len, groups))
        for group, transfer in zip(groups, of_groups, strict=True):
            for rank, sent in zip(group, transfer.sent, strict=True):
                by_rank[rank] = sent
        over, edges = axis if own == ALL else own, any(group.of_edges for group in of_groups)
        return cls(op=op, sent=tuple(by_rank), phase=phase, axis=over, of_edges=edges)

    @classmethod
    def all_to_all(cls, whole_bytes: int, before: Sizes, after: Sizes) -> Self:
        """A tensor sharded as ``before`` becomes sharded as ``after`` along another dim."""
        whole = sum(after)
        # Of what it holds before, a rank keeps the part that it holds afterwards too.
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
        # Rank r sends on every block that comes round, but for the one that its successor made.
        parts = [whole - successor for successor in sizes[1:] + sizes[:1]]
        return cls(op="p2p", sent=_shares(whole_bytes, parts, whole))

    @classmethod
    def edges(cls, whole_bytes: int, parts: Sequence[int], total: int) -> Self:
        """Each rank sends so many of the ``total`` positions of a tensor, to who sees them."""
        return cls(op="p2p", sent=_shares(whole_bytes, parts, total), of_edges=True)

    @classmethod
    def short_ring(cls, whole_bytes: int, sizes: Sizes, hops: int, *, are_sums: bool) -> Self:
        """Every block so many ranks on round the ring; or sums of gradients behind it, which begin
        where the block comes first, and go home from where it stops."""
        ranks, whole = len(sizes), sum(sizes)
        ends = [*accumulate(sizes + sizes, initial=0)]
        # Rank r sends on the blocks of the ranks up to itself, or those of the ranks before it.
        lasts = range(ranks + 1 - are_sums, 2 * ranks + 1 - are_sums)
        return cls(
            op="p2p",
            sent=_shares(whole_bytes, [ends[last] - ends[last - hops] for last in lasts], whole),
        )

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
        # Ranks that send as much share one object: thousands of ranks, a few comparisons.
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
    # Equal amounts are the same object, so ids tell kinds apart without comparing fractions.
    by_rank = zip(*(transfer.sent for transfer in transfers), strict=True)
    return [first.setdefault(tuple(map(id, sent)), rank) for rank, sent in enumerate(by_rank)]


def along_held(axis: str, mesh: Mesh, held: Sizes, of_sizes: Callable[[Sizes], Traffic]) -> Traffic:
    """What the ranks of a group send by what they hold, in all groups of an axis of the mesh.

    Groups that hold as much send the same, and are worked out once.

    Parameters
    ----------
    axis
        The axis of the mesh whose groups exchange.
    mesh
        The grid of all ranks.
    held
        Positions that each of all ranks holds.
    of_sizes
        Traffic of a group whose ranks hold these positions.

    Returns
    -------
    The transfers in forward and in backward, each over all ranks.
    """
    once = cache(of_sizes)
    return along(axis, mesh.groups(axis), lambda group: once(tuple(held[rank] for rank in group)))


def streams(
    sublayer: Sublayer, workload: Workload, axis: str, image: Sizes, text: Sizes
) -> list[Stream]:
    """What passes through ``sublayer``: the activation, and text unless it is a cross-attention.

    Parameters
    ----------
    sublayer, workload
        What is computed.
    axis
        The axis that is sharded.
    image, text
        Positions of that axis, and of text, that each of all ranks holds, or each of a group.

    Returns
    -------
    Bytes of each tensor, and how ranks hold it.
    """
    # A group holds sum(image) of the positions of the axis: all, or one group's part of them.
    passing = [(workload.activation_bytes // workload.axes[axis] * sum(image), image)]
    if workload.text and not isinstance(sublayer, CrossAttention):
        passing.append((workload.activation_bytes // workload.tokens * sum(text), text))
    return passing


def waited_bytes(transfers: Iterable[Transfer]) -> float:
    """Bytes that ranks wait for: the busiest rank's of each transfer but the gradients' sum."""
    return float(sum(transfer.most for transfer in transfers if transfer.phase != "gradients"))


def bytes_in_a_step(
    workload: Workload,
    forward: list[Transfer],
    backward: list[Transfer],
    *,
    repeated: bool = True,
    attended_again: Sequence[Transfer] = (),
) -> float:
    """Bytes that a step waits for: the sum over transfers of the busiest rank's.

    Parameters
    ----------
    workload
        Whether there is a backward, and whether it runs forward again.
    forward, backward
        Transfers of a part of a step.
    repeated
        Whether full checkpointing repeats those of forward.
    attended_again
        Those that selective checkpointing repeats.

    Returns
    -------
    Bytes.
    """
    if workload.mode == "forward":
        backward = []
    elif workload.recomputes and repeated:
        backward = forward + backward
    elif workload.recomputes_attention:
        backward = [*attended_again, *backward]
    return waited_bytes(forward + backward)


Tally = list[tuple[Transfer, int]]
"""Transfers, each once, and how often it comes."""


def tally(transfers: Iterable[Transfer]) -> Tally:
    """Each transfer once: a stack repeats a few."""
    transfers = list(transfers)
    by_id = {id(transfer): transfer for transfer in transfers}
    return [(by_id[which], times) for which, times in Counter(map(id, transfers)).items()]


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


def merged(one: Count, other: Count) -> Count:
    """Bytes that were counted in two places."""
    return {kind: one.get(kind, 0) + other.get(kind, 0) for kind in {**one, **other}}


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
    # Each phase has a busiest rank of its own.
    by_kind = [by_phase(_count(tallied, rank)) for rank in kinds]
    return {phase: max((sent[phase] for sent in by_kind), default=0) for phase in PHASES}


def busiest_rank(transfers: Iterable[Transfer]) -> int:
    """The first rank that sends the most in all these transfers together; 0 without any."""
    tallied = tally(transfers)
    kinds = sorted(set(kinds_of_ranks([transfer for transfer, _ in tallied])))
    return max(kinds, key=lambda rank: sum(_count(tallied, rank).values()), default=0)


@dataclass(frozen=True)
class Move:
    """A sublayer at its place in a block, and the axes that are sharded before and in it."""

    place: Place
    before: str
    axis: str


@dataclass(frozen=True, eq=False)
class Hop:
    """One all-to-all of a switch: ``before`` becomes whole where ``after`` is cut."""

    before: Shard
    after: Shard
    over: str = ALL
    """The axis of the mesh whose groups it goes in."""
    stays: Shard | None = None
    """How another dim stays cut meanwhile."""

    @classmethod
    def between(cls, before: Shard, after: Shard) -> "tuple[Hop, ...]":
        """One over all ranks; none where the shard stays."""
        return () if before == after else (cls(before, after),)

    @cached_property
    def undone(self) -> "Hop":
        """The all-to-all of its backward."""
        return replace(self, before=self.after, after=self.before)

    @lru_cache(maxsize=200)  # noqa: B019 (each takes long on thousands of ranks)
    def transfer(self, whole_bytes: int, mesh: Mesh) -> Transfer:
        """The all-to-alls of all groups at once, of a tensor of ``whole_bytes``."""
        if self.over == ALL:
            return Transfer.all_to_all(whole_bytes, self.before.sizes, self.after.sizes)
        stays = self.stays
        assert stays is not None, "an all-to-all in groups leaves another dim as it is"

        @cache
        def of_group(kept: int, before: Sizes, after: Sizes) -> Transfer:
            return Transfer.all_to_all(whole_bytes * kept // stays.length, before, after)

        groups = mesh.groups(self.over)
        of_groups = []
        for members in groups:
            # All ranks of a group hold the same positions of the dim that stays cut.
            kept = stays.sizes[members[0]]
            before = tuple(self.before.sizes[rank] for rank in members)
            after = tuple(self.after.sizes[rank] for rank in members)
            of_groups.append(of_group(kept, before, after))
        return Transfer.along(self.over, groups, of_groups)


def gradient_sums(
    workload: Workload, mesh: Mesh, cuts_weights: bool, holds_whole: bool
) -> list[Transfer]:
    """The sums of gradients in training: of weights that all ranks hold, over all; of a part of a
    weight over the ranks of other groups that hold it too.

    Parameters
    ----------
    workload
        What is computed.
    mesh
        The grid of all ranks; weights are cut over groups of its last axis.
    cuts_weights
        Whether they are cut at all.
    holds_whole
        Whether such a group has whole gradients already, but for weights of each head.

    Returns
    -------
    All-reduces, each over all ranks or over groups of the other axes.
    """
    if workload.mode != "train":
        return []
    total, number_bytes = parameters(workload), DTYPE_BYTES[workload.dtype]
    everywhere = total.of_heads if holds_whole else total.replicated
    if not cuts_weights:
        everywhere = total.total
    sums = [Transfer.all_reduce(everywhere * number_bytes, mesh.size)] if everywhere else []
    others = mesh.without(mesh.last)
    if cuts_weights and others:
        parts = cut_parameters(workload, mesh.size_of(mesh.last))
        # A group that has whole gradients already sums them with other groups alone.
        also = total.replicated - total.of_heads if holds_whole else 0
        groups = mesh.groups(*others)
        # Ranks that hold the same part of the weights stand alike in their groups of the last axis,
        # which runs fastest: rank r has part r mod the size of such a group.
        of_groups = [
            Transfer.all_reduce((parts[group[0] % len(parts)] + also) * number_bytes, len(group))
            for group in groups
        ]
        sums.append(Transfer.along("+".join(others), groups, of_groups))
    return [transfer.during("gradients") for transfer in sums]


def held_with_text(workload: Workload, axis: str, sizes: Sizes, text: Sizes) -> Sizes:
    """What each rank holds of a self-attention's sequence.

    Parameters
    ----------
    workload
        What is computed.
    axis
        The axis that is sharded.
    sizes, text
        Positions of that axis, and text tokens, that each rank holds.

    Returns
    -------
    Positions of the axis; where the workload has text, tokens of a sample, the text's included.
    """
    if not workload.text:
        return sizes
    others = workload.tokens // workload.axes[axis]
    return tuple(others * n + of_text for n, of_text in zip(sizes, text, strict=True))


def shared_length(workload: Workload, axis: str) -> int:
    """What all ranks together hold of a self-attention's sequence."""
    return workload.all_tokens if workload.text else workload.axes[axis]


def in_a_step(
    workload: Workload,
    place: Place,
    own: Traffic,
    switches: Traffic,
    ends_in_transfer: bool,
    attended_again: Sequence[Transfer],
) -> list[Transfer]:
    """Transfers of a sublayer in a step.

    Under full checkpointing, backward runs each block's forward again, from the block's input
    to the last tensor that backward needs: the switch into the block is not repeated, nor
    is a transfer at its very end, unless a gate behind it needs the result. Under selective
    checkpointing it runs each self-attention again, from q, k and v to the last such tensor.

    Parameters
    ----------
    workload
        Whether there is a backward, and whether it runs forward again.
    place
        The sublayer, and where in its block it stands.
    own, switches
        Transfers of the sublayer itself, and of the switch before it, back and forth.
    ends_in_transfer
        Whether its last transfer in forward comes after all tensors that backward needs.
    attended_again
        Those that are repeated where its attention alone runs again.

    Returns
    -------
    The transfers, in the order of a step.
    """
    (forward, backward), (there, back) = own, switches
    if workload.mode != "train":
        return there + forward
    # A block's input is what checkpointing keeps, behind the switch into the block.
    repeated = forward if place.is_first else there + forward
    if place.is_last and ends_in_transfer and not is_modulated(place.sublayer, workload):
        repeated = repeated[:-1]
    again = repeated if workload.recomputes else []
    again = [*attended_again] if workload.recomputes_attention else again
    return there + forward + [sent.during("backward") for sent in again + backward + back]
