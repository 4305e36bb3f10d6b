"""Which ranks of a case have to be counted, so that the one with the most is among them.

Ranks that hold alike and send alike compute alike: as many positions and heads, alone and with the
ranks beside them, and the same bytes in every transfer. One of them is counted. Under a causal mask
it matters, too, where what a rank holds begins; what it computes, and what is alive at a moment, is
affine in that, so that of ranks which differ in nothing else those at the ends have the most:

    zigzag on 6 ranks    0 | 1 2 3 4 | 5      the first begins at 0, the last holds a single run

Of what one block says of these the ranks are left out that have no more of anything than another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import chain, combinations, pairwise, permutations, product
from math import prod

import numpy as np

from spbench.layers.heads import share_heads
from spbench.projection.dryrun.dry_step import DryStep
from spbench.strategies.base import Plan
from spbench.strategies.fixed_axis import FixedPlan
from spbench.workload.block import Attention, CrossAttention, Mlp, Sublayer
from spbench.workload.fields import OF_AXES
from spbench.workload.flops import block_flops
from spbench.workload.mesh import PP, Mesh
from spbench.workload.sharding import Run, Shard, shard_sizes
from spbench.workload.stages import Stages
from spbench.workload.strands import crossings
from spbench.workload.traffic import Transfer, kinds_of_ranks, tally
from spbench.workload.workload import Workload

MOST_RANKS = 64
"""Ranks that are all counted where documents are packed."""
Heads = tuple[int, int]
"""Query heads and key heads."""


def ranks_to_count(plan: Plan) -> list[int]:
    """Ranks of which one has the most operations and one the most bytes, in ascending order."""
    if plan.stages is not None:
        return _of_stages(plan, plan.stages)
    plan = plan.group  # groups are alike
    workload, mesh = plan.workload, plan.mesh
    shards, begins = _shards(plan)
    facts: list[Sequence[Hashable]] = [_of_heads(workload, mesh)]
    facts += [_of_positions(shard, mesh, begins) for shard in shards]
    facts += [_of_bytes(plan.traffic, plan.ranks)]
    alike: dict[Hashable, list[int]] = {}
    for rank, held in enumerate(zip(*facts, strict=True)):
        alike.setdefault(held, []).append(rank)
    counted: Iterable[Collection[int]] = (
        _ends(members, mesh) if begins else members[:1] for members in alike.values()
    )
    if begins and any(each.documents for each in workload.attentions) and plan.ranks <= MOST_RANKS:
        counted = alike.values()  # where documents end is anywhere
    else:
        counted = chain(counted, _of_masks(plan, list(alike.values())))
    return sorted({rank for found in counted for rank in found})


def _of_masks(plan: Plan, alike: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Under each mask, of ranks that are else alike, the one that computes the most."""
    if isinstance(plan, FixedPlan):
        for attention in plan.workload.attentions:
            pairs = partial(plan.pairs, attention)
            if plan.shown(attention):
                yield [max(members, key=pairs) for members in alike]


def _of_stages(plan: Plan, stages: Stages) -> list[int]:
    """Those of the first stage, which holds the most microbatches, of the last, and of the one with
    the most operations."""
    flops = block_flops(plan.workload)
    of_stages = [sum(flops[n] for n in part.blocks) for part in stages.parts]
    counted = {0, of_stages.index(max(of_stages)), stages.count - 1}
    inside, ranks = ranks_to_count(plan.group), plan.group.ranks
    outside = [axis for axis, _ in plan.mesh.axes if axis not in plan.group.mesh.names]
    found = []
    for rank in range(plan.ranks):
        place = plan.mesh.place(rank)
        is_one = all(place[axis] == 0 for axis in outside if axis != PP)  # groups are alike
        if is_one and place[PP] in counted and rank % ranks in inside:
            found.append(rank)
    return found


def _shards(plan: Plan) -> tuple[list[Shard], bool]:
    """The cuts of all axes that are sharded, and of text; whether a mask makes it matter where a
    rank's positions begin."""
    workload, layout = plan.workload, plan.layout
    pairs = dict.fromkeys(
        (each, axis)
        for each, axis in zip(workload.stack, layout, strict=True)
        if workload.strand_of(each) == OF_AXES
    )
    cuts = {axis: plan.shards[axis].cuts for axis in dict.fromkeys(layout)}
    begins = any(
        isinstance(each, Attention)
        and (each.causal or each.window or each.documents)
        and {cut.dim for cut in cuts[axis]} & {workload.dim(x) for x in each.axes}
        for each, axis in pairs
    )
    biased = {x for each, _ in pairs if _has_bias(each) for x in each.attended}
    every = [cut for of_axis in cuts.values() for cut in of_axis]
    every += [plan.shards[axis] for axis in sorted(biased - {*cuts})]
    for stream in plan.of_streams.values():
        of_stream, begins_too = _shards(stream)
        every, begins = [*every, *of_stream], begins or begins_too
    return [*every, plan.text], begins


def _has_bias(sublayer: Sublayer) -> bool:
    return isinstance(sublayer, Attention) and bool(sublayer.pair_bias)


def _of_positions(shard: Shard, mesh: Mesh, begins: bool) -> list[Hashable]:
    """For each rank the lengths of what it holds, and of what those of its groups hold.

    ``begins``: whether it matters, too, which run is the first of all, and which two touch.
    """
    own: list[Hashable] = list(map(_lengths, shard.runs)) if begins else [*shard.sizes]
    if len({*own}) == 1:
        return [None] * len(own)
    facts: list[list[Hashable]] = [[each] for each in own]
    for count in range(1, len(mesh.axes)):  # of all axes it is the whole, of every rank
        for axes in combinations(mesh.names, count):
            for members in mesh.groups(*axes):
                together = tuple(own[rank] for rank in members)
                for rank in members:
                    facts[rank].append(together)
    return [tuple(each) for each in facts]


def _of_bytes(traffic: Sequence[Transfer], ranks: int) -> list[Hashable]:
    """For each rank what it sends in each transfer."""
    transfers = [each for each, _ in tally(traffic)]
    if not transfers:
        return [None] * ranks
    kinds = kinds_of_ranks(transfers)  # by identity: those of two kinds may yet be equal
    sent = {kind: tuple(each.sent[kind] for each in transfers) for kind in set(kinds)}
    return [sent[kind] for kind in kinds]


def _lengths(runs: Sequence[Run]) -> tuple[tuple[int, bool], ...]:
    """Each run's length, and whether it begins where the one before it ends, or at 0.

    >>> _lengths([(0, 4), (12, 4)]), _lengths([(4, 4), (8, 4)])
    (((4, True), (4, False)), ((4, False), (4, True)))
    """
    ends = [0, *(first + length for first, length in runs)]
    return tuple((length, first == end) for (first, length), end in zip(runs, ends, strict=False))


def _of_heads(workload: Workload, mesh: Mesh) -> list[Hashable]:
    """For each rank the heads and columns that it has, whichever axes of the mesh share them."""
    strands = workload.strands.values()
    units = {n for strand in strands for each in strand.kinds for n in _units(each, strand)}
    heads = {(strand.heads, strand.key_heads) for strand in strands}
    heads |= {(one.heads, one.heads) for one, _ in crossings(workload)}

    @cache
    def at(places: tuple[tuple[int, int], ...]) -> Hashable:
        columns = [shard_sizes(n, size)[own] for own, size in places for n in units]
        return tuple(tuple(_shares(each, places)) for each in sorted(heads)), tuple(columns)

    def of(rank: int) -> Hashable:
        places = ((mesh.place(rank)[name], size) for name, size in reversed(mesh.axes))
        return at(tuple(place for place in places if divided(place[1])))

    @cache
    def divided(size: int) -> bool:
        """Whether so many ranks may share heads or columns, and have unequal numbers of them."""
        counts = {*chain.from_iterable(heads), *units}
        return any(n >= size and n % size for n in counts) or any(
            keys < size <= queries for queries, keys in heads
        )

    return [of(rank) for rank in range(mesh.size)]


def _units(sublayer: Sublayer, workload: Workload) -> Iterator[int]:
    """Heads or columns, other than those of self-attention, by which its weights may be cut."""
    match sublayer:
        case CrossAttention():
            yield workload.cross_heads(sublayer)[0]
        case Mlp():
            yield workload.columns(sublayer)
        case Attention(beside=Mlp() as mlp):
            yield workload.columns(mlp)


def _shares(heads: Heads, places: Sequence[tuple[int, int]]) -> Iterator[Heads]:
    """What a rank has of ``heads`` if they are shared along each of these axes of the mesh, or only
    along some. ``places``: where it stands, of how many, innermost first."""
    for inner, (own, size) in enumerate(places):
        for share in _share(heads, own, size):
            yield share
            yield from _shares(share, places[inner + 1 :])


def _share(heads: Heads, own: int, size: int) -> Iterator[Heads]:
    """One of ``size`` shares: of whole groups as weights are cut, and as activations are shared,
    where several ranks may have copies of a key head."""
    queries, keys = heads
    if size <= keys:
        whole = shard_sizes(keys, size)[own]
        yield whole * (queries // keys), whole
    if size <= queries:
        shares = share_heads(queries, keys, size)
        yield shares.queries[own], shares.matched_size(own)
        yield shares.queries[own], len(shares.keys[own])  # of cut weights, before they are matched


def _ends(members: Sequence[int], mesh: Mesh) -> set[int]:
    """The corners of these ranks in the grid: the least and the greatest by each order of axes."""
    if len(members) <= 2:
        return {*members}
    sizes = [size for _, size in mesh.axes]
    places = np.array(np.unravel_index(np.array(members), sizes))
    found: set[int] = set()
    for order in permutations(range(len(sizes))):
        # Weights under which places compare as by the first axis, then by the second, ...
        weights = np.array(
            [prod(sizes[axis] for axis in order[i + 1 :]) for i in range(len(order))]
        )
        for signs in product((1, -1), repeat=len(order)):
            by_weight = (weights * signs) @ places[list(order)]
            found.add(members[int(by_weight.argmin())])
    return found


def not_exceeded(blocks: Mapping[int, DryStep]) -> list[int]:
    """Ranks that none exceeds by what a step of the least blocks of each kind counts.

    A deeper step has a multiple of what each stretch of this one adds, so that a rank which has no
    more of anything has no more there either. Of equals the first stays.
    """
    kept: dict[int, Counter[Hashable]] = {}
    for rank, step in blocks.items():
        has = _amounts(step)
        if not any(_exceeds(other, has) for other in kept.values()):
            kept = {known: other for known, other in kept.items() if not _exceeds(has, other)}
            kept[rank] = has
    return list(kept)


def _exceeds(one: Counter[Hashable], other: Counter[Hashable]) -> bool:
    """Whether ``one`` has at least as much of everything."""
    return all(one[each] >= amount for each, amount in other.items())


def _amounts(step: DryStep) -> Counter[Hashable]:
    """Operations of each stretch, bytes at its peak, and what it leaves behind; bytes of weights,
    which are those of gradients and moments, too."""
    amounts: Counter[Hashable] = Counter()
    for name, part in step.parts.items():
        amounts[name, "operations"] = sum(each.flops * n for each, n in part.kernels.items())
    for name, stretch in step.stretches.items():
        amounts[name, "peak"] = stretch.peak.total()
    for (name, before), (_, after) in pairwise(step.stretches.items()):
        # Forward leaves activations; what backward leaves are gradients, which weigh as weights do.
        amounts[name, "left"] = max(0, after.start.total() - before.start.total())
    for weight in step.weights:
        amounts["weights"] += weight.nbytes
    return amounts
