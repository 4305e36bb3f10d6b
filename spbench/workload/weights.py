"""The shapes of a model's weights, and what is sent where ranks share them out (ZeRO).

Rajbhandari et al., SC 2020: ranks that hold the same weights each keep a part of what training
keeps. Here a part is a run of the rows of every weight, as torch's ``fully_shard`` has it. Weights
go in units, each one message: the whole model for ``zero: 1``, else each block and what is in none.

    zero 1    the whole gathered as a step begins, its gradients scattered as it ends
    zero 2    each block gathered in forward, its gradients scattered in backward
    zero 3    also freed after forward, and gathered once more in backward; the last block stays

A gather sends (n - 1) b, with b the bytes of a rank's part of a unit; a scatter as much. Where n
divides no dim of a weight, its rows are padded to a multiple of n.
"""

from collections.abc import Iterator, Sequence
from functools import cache, partial
from math import prod
from typing import NamedTuple

from spbench.workload.block import Attention, CrossAttention, Mlp, Stack, StreamAttention, Sublayer
from spbench.workload.fields import ACROSS_HEADS, DTYPE_BYTES
from spbench.workload.flops import is_modulated, modulated, weight_sets
from spbench.workload.mesh import ALL, PP, Groups, Mesh
from spbench.workload.sharding import Stretch
from spbench.workload.stages import Stages
from spbench.workload.strands import between
from spbench.workload.traffic import Transfer
from spbench.workload.workload import Workload

FSDP = "fsdp"
"""What the axis of ranks that share out weights is called, whatever axes of the mesh it joins."""
Shape = tuple[int, ...]
Stretches = tuple[Stretch, ...]
"""What a dim is that is cut over ranks: heads of queries, keys, values; columns."""


class Weight(NamedTuple):
    """One parameter of the model, whole."""

    shape: Shape
    cut_dim: int | None = None
    """The dim along which a strategy that cuts weights cuts it."""
    stretches: Stretches = ()
    of_heads: bool = False
    """Whether every head adds to its gradient."""

    def of(self, part: int, parts: int) -> Shape:
        """The shape of one of so many parts."""
        if self.cut_dim is None or parts == 1:
            return self.shape
        held = sum(stretch.lengths(parts)[part] for stretch in self.stretches)
        return (*self.shape[: self.cut_dim], held, *self.shape[self.cut_dim + 1 :])


def shared_dim(shape: Shape, ranks: int) -> int:
    """The dim of a weight that ranks share out: the first that they divide, else the rows."""
    return next((dim for dim, n in enumerate(shape) if n % ranks == 0), 0)


def padded_numbers(shape: Shape, ranks: int) -> int:
    """Numbers of one rank's part, with those that fill it up."""
    dim = shared_dim(shape, ranks)
    return -(-shape[dim] // ranks) * prod(shape[:dim]) * prod(shape[dim + 1 :])


def shared_sizes(length: int, ranks: int) -> tuple[int, ...]:
    """Positions of each rank of a dim that is shared out, as torch's ``chunk`` has them.

    >>> shared_sizes(8, 3), shared_sizes(3, 4)
    ((3, 3, 2), (1, 1, 1, 0))
    """
    most = -(-length // ranks)
    return tuple(max(0, min(most, length - rank * most)) for rank in range(ranks))


# Which weights there are


def of_block(part: Stack, workload: Workload) -> list[Weight]:
    """The weights of a block."""
    return [weight for sublayer in part.block for weight in _of_sublayer(sublayer, workload)]


def of_no_block(workload: Workload) -> list[Weight]:
    """Those of all blocks together: conditioning, positions, the final norm and projection."""
    return [*of_condition(workload), *of_positions(workload), *of_ending(workload)]


def of_condition(workload: Workload) -> list[Weight]:
    """The projection of the condition, which serves all blocks; one of each strand."""
    weights = []
    for strand in workload.strands.values():
        if rows := 3 * modulated(strand) * strand.hidden:
            weights += [Weight((rows, strand.hidden)), Weight((rows,))]
    return weights


def of_positions(workload: Workload) -> list[Weight]:
    """What is added to the input: before the first block."""
    return [
        Weight((length, strand.hidden))
        for strand in workload.strands.values()
        for axis, length in strand.coordinates.items()
        if strand.position_of(axis) == "learned"
    ]


def of_ending(workload: Workload) -> list[Weight]:
    """The final norm and projection: behind the last block."""
    final = workload.out_channels
    return [*_norm(workload), Weight((final, workload.hidden)), Weight((final,))]


def _norm(workload: Workload) -> list[Weight]:
    of_hidden = Weight((workload.hidden,))
    return [of_hidden, of_hidden] if workload.norm == "layer" else [of_hidden]


def _of_sublayer(sublayer: Sublayer, workload: Workload) -> Iterator[Weight]:
    if isinstance(sublayer, StreamAttention):
        yield from _of_crossing(sublayer, workload)
        return
    sublayer, workload = workload.at_home(sublayer)
    for _ in range(weight_sets(sublayer)):
        if is_modulated(sublayer, workload):
            yield Weight((3, workload.hidden))  # a table of shift, scale and gate
        else:
            yield from _norm(workload)
        match sublayer:
            case Attention():
                yield from _of_scores(sublayer, workload)
                yield from _of_heads(sublayer, workload)
            case CrossAttention():
                heads, size = workload.cross_heads(sublayer)
                cut = Stretch(heads)
                yield from _linear((heads, size), (workload.hidden,), 0, (cut,))
                yield from _linear((2 * heads, size), (workload.hidden,), 0, (cut, cut))
                yield from _linear((workload.hidden,), (heads, size), 1, (cut,))
            case Mlp():
                columns, ways = workload.columns(sublayer), sublayer.ways_in
                cut = Stretch(columns)
                yield from _linear((ways * columns,), (workload.hidden,), 0, (cut,) * ways)
                yield from _linear((workload.hidden,), (columns,), 1, (cut,))


def _of_crossing(sublayer: StreamAttention, workload: Workload) -> Iterator[Weight]:
    one = between(sublayer, workload)
    cut, asking, asked = Stretch(one.heads), one.asking.hidden, one.asked.hidden
    yield from _norm(one.asking)
    yield from _norm(one.asked)
    yield from _linear((one.heads, one.head_size), (asking,), 0, (cut,))
    yield from _linear((2 * one.heads, one.head_size), (asked,), 0, (cut, cut))
    yield from _linear((asking,), (one.heads, one.head_size), 1, (cut,))


def _linear(out: Shape, into: Shape, dim: int, stretches: Stretches) -> Iterator[Weight]:
    """A weight (*out, *into) and its bias, which is cut where the way out is."""
    yield Weight((*out, *into), dim, stretches)
    yield Weight(out, dim, stretches) if dim == 0 else Weight(out)


def _of_heads(attention: Attention, workload: Workload) -> Iterator[Weight]:
    """The projections into q, k and v, and out of the heads; with an mlp beside, of both."""
    hidden, values = workload.hidden, workload.value_size
    heads, wide = workload.qkv_stretches, sum(workload.qkv_widths)
    if attention.beside is None:
        yield from _linear((wide,), (hidden,), 0, heads)
        results = (workload.result_stretch(1),)
        yield from _linear((hidden,), (workload.heads, values), 1, results)
        return
    columns, ways = workload.columns(attention.beside), attention.beside.ways_in
    beside = (Stretch(columns),) * ways
    yield from _linear((wide + ways * columns,), (hidden,), 0, (*heads, *beside))
    out = (workload.result_stretch(values), Stretch(columns))
    yield from _linear((hidden,), (workload.result_width + columns,), 1, out)


def _of_scores(attention: Attention, workload: Workload) -> Iterator[Weight]:
    """Norms of queries and keys, projections along the sequence, the weights of a pair bias."""
    units, size = workload.key_heads, workload.head_size
    if workload.qk_norm == ACROSS_HEADS:
        group = workload.heads // units
        yield Weight((workload.heads, size), 0, (Stretch(units, group),))
        yield Weight((units, size), 0, (Stretch(units),))
    elif workload.qk_norm:
        yield from [Weight((size,), of_heads=True)] * 2
    if attention.sinks:
        yield Weight((workload.heads,), of_heads=True)
    if attention.projection:
        lengths = [n for axis, n in workload.axes.items() if axis in attention.axes]
        yield Weight((2, attention.projection, *lengths), of_heads=True)
    if attention.pair_bias:
        yield Weight((workload.heads, attention.pair_bias))


def weights_of_stages(workload: Workload, stages: Stages) -> list[list[Weight]]:
    """Those of each stage of a pipeline, the condition's first, which all have."""
    of_blocks = [of_block(part, workload) for part in workload.parts for _ in range(part.depth)]
    found = []
    for part in stages.parts:
        weights = [*of_condition(workload), *(of_positions(workload) if part.is_first else [])]
        weights += [each for n in part.blocks for each in of_blocks[n]]
        found.append(weights + (of_ending(workload) if part.is_last else []))
    return found


# What is sent


def sharing_axes(mesh: Mesh, cuts_weights: bool) -> tuple[str, ...]:
    """The axes of the mesh whose ranks hold the same weights."""
    return mesh.without(mesh.last) if cuts_weights else mesh.names


def are_shared(workload: Workload, mesh: Mesh, cuts_weights: bool) -> bool:
    """Whether weights are shared out among ranks that hold the same."""
    of_training = workload.mode == "train" and workload.zero > 0
    return of_training and mesh.only(*sharing_axes(mesh, cuts_weights)).size > 1


def sharing_traffic(
    workload: Workload, mesh: Mesh, cuts_weights: bool, holds_whole: bool
) -> list[Transfer]:
    """Transfers of a step by which ranks share out weights, in the order of a step.

    Parameters as of ``gradient_sums``, in whose place they are.

    Returns
    -------
    Gathers in forward and backward, scatters as gradients, and sums of what a group that cuts
    weights has in parts.
    """
    groups = mesh.groups(*sharing_axes(mesh, cuts_weights))
    parts = mesh.size_of(mesh.last) if cuts_weights else 1
    number_bytes = DTYPE_BYTES[workload.dtype]
    rest = of_no_block(workload)
    stacks = [(of_block(part, workload), part.depth) for part in workload.parts]
    whole = [*rest, *(weight for weights, depth in stacks for weight in weights * depth)]
    # Blocks of a stack are equal units, and their transfers are one object.
    outside, *of_stacks = (
        _Unit.of(weights, groups, parts, number_bytes)
        for weights in (whole if workload.zero == 1 else rest, *(weights for weights, _ in stacks))
    )
    blocks = [
        unit for unit, (_, depth) in zip(of_stacks, stacks, strict=True) for _ in range(depth)
    ]
    units = [outside] if workload.zero == 1 else [outside, *blocks]
    sent = [unit.gather for unit in units]
    if workload.zero == 3:  # the last block is still there
        sent += [unit.gather_again for unit in reversed(blocks[:-1])]
    sent += [unit.scatter for unit in reversed(units)]
    if cuts_weights:
        in_parts = [
            weight
            for weight in whole
            if weight.cut_dim is None and (weight.of_heads or not holds_whole)
        ]
        sent += _sums_of_parts(in_parts, mesh, groups, number_bytes)
    return sent


def sums_of_stages(
    workload: Workload, mesh: Mesh, cuts_weights: bool, holds_whole: bool, stages: Stages
) -> list[Transfer]:
    """The sums of gradients in training where each stage of a pipeline has weights of its own.

    A weight of one stage is summed over its ranks, the condition's over those of all stages.
    Parameters as of ``gradient_sums``, in whose place they are, and the ``stages``.

    Returns
    -------
    All-reduces, each over groups of the axes whose ranks hold the same weights.
    """
    if workload.mode != "train":
        return []
    own, condition = weights_of_stages(workload, stages), of_condition(workload)
    own = [weights[len(condition) :] for weights in own]
    parts = mesh.size_of(mesh.last) if cuts_weights else 1
    number_bytes = DTYPE_BYTES[workload.dtype]
    is_in_parts = partial(_is_in_parts, cuts_weights=cuts_weights, holds_whole=holds_whole)

    @cache
    def summed(stage: int | None, part: int, in_parts: bool) -> int:
        weights = condition if stage is None else own[stage]
        of_kind = (each for each in weights if is_in_parts(each) == in_parts)
        return number_bytes * sum(prod(each.of(part, parts)) for each in of_kind)

    sums = []
    for in_parts in (False, True):
        axes = mesh.without(mesh.last) if in_parts else mesh.names
        for over in filter(None, (axes, tuple(axis for axis in axes if axis != PP))):
            groups = mesh.groups(*over)
            stage = [None if PP in over else mesh.place(members[0])[PP] for members in groups]
            # Ranks that cut a weight are neighbours: those of a group have the same part of each.
            of_groups = [
                Transfer.all_reduce(summed(own_stage, members[0] % parts, in_parts), len(members))
                for own_stage, members in zip(stage, groups, strict=True)
            ]
            name = ALL if over == mesh.names else "+".join(over)
            sums.append(Transfer.along(name, groups, of_groups).during("gradients"))
    return sums


def _is_in_parts(weight: Weight, *, cuts_weights: bool, holds_whole: bool) -> bool:
    """Whether neighbours that cut weights sum nothing of its gradient among themselves: each has a
    part of its own, or all have all of it."""
    return cuts_weights and (weight.cut_dim is not None or (holds_whole and not weight.of_heads))


class _Unit(NamedTuple):
    """What is sent for weights that are gathered together."""

    gather: Transfer
    gather_again: Transfer
    scatter: Transfer

    @classmethod
    def of(
        cls, weights: Sequence[Weight], groups: Groups, parts: int, number_bytes: int
    ) -> "_Unit":
        """``parts``: in how many parts neighbours cut them."""

        @cache
        def of_part(part: int, ranks: int) -> tuple[Transfer, Transfer]:
            numbers = sum(padded_numbers(weight.of(part, parts), ranks) for weight in weights)
            whole_bytes, sizes = numbers * ranks * number_bytes, (numbers,) * ranks
            gather = Transfer.all_gather(whole_bytes, sizes)
            return gather, Transfer.reduce_scatter(whole_bytes, sizes)

        # Ranks that cut a weight are neighbours: those of a group have the same part of each.
        of_groups = [of_part(members[0] % parts, len(members)) for members in groups]
        gathers, scatters = zip(*of_groups, strict=True)
        gather = Transfer.along(FSDP, groups, gathers)
        scatter = Transfer.along(FSDP, groups, scatters).during("gradients")
        return cls(gather, gather.during("backward"), scatter)


def _sums_of_parts(
    weights: Sequence[Weight], mesh: Mesh, groups: Groups, number_bytes: int
) -> list[Transfer]:
    """One sum over each group that cuts weights, of its ranks' equal parts of the others."""
    if not weights:
        return []
    ranks = len(groups[0])
    place = {rank: at for members in groups for at, rank in enumerate(members)}

    @cache
    def of_place(at: int, size: int) -> Transfer:
        numbers = 0
        for weight in weights:
            dim = shared_dim(weight.shape, ranks)
            held = shared_sizes(weight.shape[dim], ranks)[at]
            numbers += held * prod(weight.shape[:dim]) * prod(weight.shape[dim + 1 :])
        return Transfer.all_reduce(numbers * number_bytes, size)

    cut = mesh.groups(mesh.last)
    sums = [of_place(place[members[0]], len(members)) for members in cut]
    return [Transfer.along(mesh.last, cut, sums).during("gradients")]
