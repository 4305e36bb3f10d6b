"""Reduced workloads: like a workload, and small enough to be compared with one device.

They are tried from the least reduced on, and the first that fits is taken:

    blocks          three of each stack; everything else whole
    short axes      all but the longest axis a few positions for each rank, and text as short
    longest axis    halved step by step
    head size       halved step by step, each time with the longest axis whole again, and short
                    side inputs
    axes as one     those that are cut as one, to a few positions for each rank of all together

Documents become shorter as their axis does, and boxes so small that there are two along each axis.
What makes shards uneven stays: each axis, and with it the product of those that are one, keeps its
remainder modulo the ranks, or modulo its 2 x ranks chunks if causal, and the number of heads stays.
At last only the product of those keeps it.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import Any

from pydantic import ValidationError

from spbench.workload.block import (
    Attention,
    Documents,
    DrawnDocuments,
    Stack,
    Stream,
    StreamAttention,
    Sublayer,
)
from spbench.workload.documents import resized
from spbench.workload.fields import Grid
from spbench.workload.flattened import as_given, merged
from spbench.workload.misfits import MIN_HIDDEN
from spbench.workload.workload import Workload

BLOCKS = 3
"""A defect of the first block, of the last one, and of those in between."""
LEAST_HEAD_DIM = 8
SIDES = {"length": 7, "projection": 5, "pair_bias": 3, "window": 6}
"""Text tokens, projected lengths, channels of pairs and windows where heads are smaller, too."""
MOST_PLACES = 5
"""Places that are tried along each but the longest of axes that are one."""


def reductions(work: Workload, ranks: int) -> Iterator[Workload]:
    """Reduced workloads from the least reduced to the smallest; each ``name`` says what is left.

    Where axes of the model are one, they are reduced as they are, and are one again.
    """
    grids = [work.grid(axis) for axis in work.axes]
    groups = [tuple(grid) for grid in grids if len(grid) > 1]  # axes of the model that are one here
    given = as_given(work)
    for reduced in _reductions(given, ranks):
        yield merged(reduced, groups)
    least: dict[str, int] = {}
    for group in groups:
        least |= _least_grid(
            {axis: given.axes[axis] for axis in group}, _parts(given, group[0], ranks)
        )
    axes = {axis: least.get(axis, n) for axis, n in as_given(reduced).axes.items()}
    if math.prod(axes.values()) < reduced.tokens:
        smallest = _on_axes(as_given(reduced), axes)
        yield merged(_named(given, smallest), groups)


def _reductions(work: Workload, ranks: int) -> Iterator[Workload]:
    """Those that keep of each axis what makes its own shards uneven."""
    shallow = work.with_depths([min(BLOCKS, part.depth) for part in work.parts])
    yield _named(work, shallow)
    short = {axis: _shortest(work, axis, ranks) for axis in work.axes}
    longest = max(work.axes, key=lambda axis: work.axes[axis])
    for head_dims in (None, *_halved_heads(work.head_size)):
        for length in _lengths(work, longest, ranks):
            axes = {axis: length if axis == longest else short[axis] for axis in work.axes}
            sizes = _on_axes(shallow, axes, _short_streams(work, ranks))
            sizes = sizes.model_copy(update={"text": _share(work.text, ranks)})
            yield _named(work, _smaller_heads(sizes, head_dims) if head_dims else sizes)


def _on_axes(
    work: Workload, axes: dict[str, int], streams: dict[str, Stream] | None = None
) -> Workload:
    """On axes of other lengths, and beside such streams, with documents that are shorter or longer
    in proportion."""
    streams = work.streams if streams is None else streams
    before = work.axes | {name: own.length for name, own in work.streams.items()}
    after = axes | {name: own.length for name, own in streams.items()}

    def fitted(sublayer: Sublayer) -> Sublayer:
        if isinstance(sublayer, Attention) and isinstance(sublayer.window, tuple):
            return _boxed(sublayer, sublayer.window, [after[axis] for axis in sublayer.axes])
        if not isinstance(sublayer, Attention) or sublayer.documents is None:
            return sublayer
        (axis,) = sublayer.axes
        documents: Documents
        if isinstance(sublayer.documents, DrawnDocuments):
            mean = max(1, round(sublayer.documents.mean * after[axis] / before[axis]))
            documents = sublayer.documents.model_copy(update={"mean": mean})
        else:
            documents = resized(sublayer.documents, after[axis])
        return sublayer.model_copy(update={"documents": documents})

    parts = [
        part.model_copy(update={"block": tuple(map(fitted, part.block))}) for part in work.parts
    ]
    return work.with_parts(parts).model_copy(update={"axes": axes, "streams": streams})


def _boxed(attention: Attention, window: Sequence[int], lengths: Sequence[int]) -> Attention:
    """With boxes of which there are two along each axis, at least, where there were several."""
    smaller = tuple(
        min(n, math.ceil(length / 2)) for n, length in zip(window, lengths, strict=True)
    )
    shift = attention.shift and tuple(
        min(first, n // 2) for first, n in zip(attention.shift, smaller, strict=True)
    )
    return attention.model_copy(update={"window": smaller, "shift": shift})


def _named(work: Workload, reduced: Workload) -> Workload:
    """``reduced`` with a name that says what it has of ``work``."""
    parts = [f"{reduced.blocks} of {work.blocks} blocks"] if reduced.blocks < work.blocks else []
    lengths = [(axis, reduced.axes[axis], n) for axis, n in work.axes.items()]
    lengths += [("text", reduced.text, work.text)]
    streams = work.streams.items()
    lengths += [(name, reduced.streams[name].length, own.length) for name, own in streams]
    lengths.append(("head size", reduced.head_size, work.head_size))
    parts += [f"{name} {n} of {full}" for name, n, full in lengths if n < full]
    parts += ["short side inputs"] if reduced.kinds != work.kinds else []
    name = f"{work.name} ({', '.join(parts)})" if parts else work.name
    return Workload.model_validate(reduced.model_dump(by_alias=True) | {"name": name})


def _short_streams(work: Workload, ranks: int) -> dict[str, Stream]:
    """The streams with a few positions for each rank."""
    return {
        name: own.model_copy(
            update={"length": _share(own.length, _parts(work.strands[name], name, ranks))}
        )
        for name, own in work.streams.items()
    }


def _parts(work: Workload, axis: str, ranks: int) -> int:
    return ranks * (2 if work.is_causal(axis) else 1)


def _shortest(work: Workload, axis: str, ranks: int) -> int:
    return _share(work.axes[axis], _parts(work, axis, ranks))


def _share(length: int, parts: int) -> int:
    """The least length that leaves each part some positions, and the longer ones as many more."""
    return min(length, 2 * parts + length % parts)  # two for each part, and what is over


def _least_grid(grid: Grid, parts: int) -> Grid:
    """Lengths of axes that are one for the fewest positions, which leave ``parts`` as uneven; of
    each axis at least two, so that each counts.

    The longest one makes up for the others: 21 x 30 x 52 are 2 x 2 x 46 on 64 ranks, whose 184
    positions have the remainder 56 of 32,760.
    """
    whole, longest = math.prod(grid.values()), max(grid, key=grid.__getitem__)
    ranges = {axis: range(min(n, 2), min(n, MOST_PLACES) + 1) for axis, n in grid.items()}
    del ranges[longest]
    best, fewest = grid, whole
    for places in product(*ranges.values()):
        others = math.prod(places)
        n = _least_factor(others, whole % parts, parts, _share(whole, parts))
        if n is not None and 2 <= n <= grid[longest] and n * others < fewest:
            shorter = dict(zip(ranges, places, strict=True)) | {longest: n}
            best, fewest = {axis: shorter[axis] for axis in grid}, n * others  # in tensor order
    return best


def _least_factor(others: int, remainder: int, parts: int, least: int) -> int | None:
    """The least n for which ``others`` x n leaves this remainder of ``parts`` and is as large as
    ``least``; None: for no n."""
    common = math.gcd(others, parts)
    if remainder % common:
        return None  # others x n leaves multiples of the common divisor alone
    # others x n = remainder modulo parts, divided by the common divisor: others has an inverse now.
    step = parts // common
    first = remainder // common * pow(others // common, -1, step) % step
    # Every solution is first + k x step; k so that others x n reaches the least.
    missing = max(0, least - others * first)
    return first + math.ceil(missing / (others * step)) * step


def _lengths(work: Workload, axis: str, ranks: int) -> Iterator[int]:
    """The axis whole, then about half as long each time, with the same remainder."""
    length, parts = work.axes[axis], _parts(work, axis, ranks)
    remainder, least = length % parts, _shortest(work, axis, ranks)
    while length > least:
        yield length
        length = (length // 2 - remainder) // parts * parts + remainder  # half, rounded down
    yield least


def _halved_heads(head_dim: int) -> Iterator[range]:
    """Head sizes to try in turn, for each half: rotary pairs and the like may need a few more."""
    half = head_dim // 2
    while half > LEAST_HEAD_DIM:
        yield range(half, head_dim)
        half //= 2
    yield range(min(LEAST_HEAD_DIM, head_dim), head_dim + 1)


def _smaller_heads(work: Workload, head_dims: Iterable[int]) -> Workload:
    """The first of these head sizes that the model allows, and short side inputs."""
    data = work.model_dump(by_alias=True)
    for head_dim in head_dims:
        parts = [
            Stack.model_construct(
                depth=part.depth,
                block=tuple(_smaller(each, head_dim / work.head_size) for each in part.block),
            )
            for part in work.parts
        ]
        smaller = work.with_parts(parts).model_copy(update=_widths(work, head_dim))
        data = smaller.model_dump(by_alias=True)
        try:
            return Workload.model_validate(data)
        except ValidationError:
            continue  # cross-attention's heads, rotary pairs or mlp columns need more
    return Workload.model_validate(data)


def _widths(work: Workload, head_dim: int) -> dict[str, Any]:
    """Sizes with such heads; where heads have a size of their own, hidden shrinks as they do."""
    widths: dict[str, Any] = {}
    if work.streams:
        ratio = head_dim / work.head_size
        widths["streams"] = {name: _narrow(work, name, ratio) for name in work.streams}
    if work.v_head_dim:  # values shrink as keys do, and stay of another size
        widths["v_head_dim"] = math.ceil(work.v_head_dim * head_dim / work.head_size)
    if work.head_dim is None:
        return widths | {"hidden": work.heads * head_dim}
    hidden = math.ceil(work.hidden * head_dim / work.head_dim)
    return widths | {"hidden": max(MIN_HIDDEN, hidden), "head_dim": head_dim}


def _narrow(work: Workload, name: str, ratio: float) -> Stream:
    """A stream with heads and a width of its own that shrink as those of the axes do."""
    own, strand = work.streams[name], work.strands[name]
    sizes: dict[str, int] = {}
    size = math.ceil(strand.head_size * ratio)
    if own.head_dim:
        sizes["head_dim"] = size
    if own.hidden:  # of heads without a size of their own it stays a multiple
        is_multiple = strand.head_dim is None
        hidden = size * strand.heads if is_multiple else math.ceil(own.hidden * ratio)
        sizes["hidden"] = max(MIN_HIDDEN, hidden)
    return own.model_copy(update=sizes)


def _smaller(sublayer: Sublayer, ratio: float) -> Sublayer:
    if isinstance(sublayer, StreamAttention):
        size = sublayer.head_dim and math.ceil(sublayer.head_dim * ratio)
        return sublayer.model_copy(update={"head_dim": size})
    sizes = {key: getattr(sublayer, key, None) for key in SIDES}
    lengths = {key: size for key, size in sizes.items() if isinstance(size, int)}
    return sublayer.model_copy(
        update={key: min(size, SIDES[key]) for key, size in lengths.items() if size}
    )
