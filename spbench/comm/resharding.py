"""One all-to-all makes a dim whole and cuts others, or undoes it; with as few copies as can be.

    make_whole    packed once along the inner dim; arrives where it lies, outermost dim first
    make_cut      sent from where it lies, outermost dim first; unpacked once along the inner dim

Tensors that go together are joined along the inner dim, and have one message to each rank.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from spbench.comm.packing import Cut, in_words, joined
from spbench.comm.transport import Transport
from spbench.workload.sharding import Shard


def memory_order(x: Tensor, features: int = 0) -> list[int]:
    """Dims as they lie in memory, outermost first; the last ``features`` of them stay last."""
    strides, leading = x.stride(), x.ndim - features
    return [*sorted(range(leading), key=lambda dim: -strides[dim]), *range(leading, x.ndim)]


def undone(order: Sequence[int]) -> list[int]:
    """The order of dims that undoes a permutation."""
    return sorted(range(len(order)), key=order.__getitem__)


def make_whole(
    transport: Transport, xs: Sequence[Tensor], outermost: Shard, others: Sequence[Shard]
) -> list[Tensor]:
    """``outermost.dim`` becomes whole, and each tensor is cut as its shard of ``others`` says.

    Returns views of the one tensor that arrives.
    """
    dim = _inner(outermost, others[0])
    wires = [x.movedim(outermost.dim, 0) for x in xs]
    widths = [shard.sizes[transport.rank] for shard in others]
    shape = resized(wires[0].shape, 0, outermost.length)
    whole = transport.empty(xs[0], resized(shape, dim, sum(widths)))
    leaving = [Cut(x, dim, shard) for x, shard in zip(wires, others, strict=True)]
    transport.all_to_all([Cut(whole, 0, outermost)], leaving).wait()
    return [part.movedim(0, outermost.dim) for part in whole.split(widths, dim)]


def make_cut(
    transport: Transport,
    xs: Sequence[Tensor],
    outermost: Shard,
    others: Sequence[Shard],
    order: Sequence[int] | None = None,
) -> list[Tensor]:
    """``make_whole`` undone. Dims lie in memory in ``order``, or as in the message."""
    dim = _inner(outermost, others[0])
    wires = [x.movedim(outermost.dim, 0) for x in xs]
    outs: Sequence[Tensor]
    if len(xs) > 1 and all(other == others[0] for other in others):
        stacked = torch.stack([*in_words(wires)], dim).view(xs[0].dtype)  # unpacked by one copy
        outs = _cut(transport, stacked, dim + 1, outermost, others[:1], None)[0].unbind(dim)
    else:
        outs = _cut(transport, joined(wires, dim), dim, outermost, others, order)
    return [out.movedim(0, outermost.dim) for out in outs]


def _cut(
    transport: Transport,
    whole: Tensor,
    dim: int,
    outermost: Shard,
    others: Sequence[Shard],
    order: Sequence[int] | None,
) -> list[Tensor]:
    shape = resized(whole.shape, 0, outermost.sizes[transport.rank])
    order = range(len(shape)) if order is None else order
    outs: list[Tensor] = []
    for other in others:
        sizes = resized(shape, dim, other.length)
        outs.append(transport.empty(whole, [sizes[each] for each in order]).permute(undone(order)))
    arriving = [Cut(out, dim, shard) for out, shard in zip(outs, others, strict=True)]
    transport.all_to_all(arriving, [Cut(whole, 0, outermost)]).wait()
    return outs


def _inner(outermost: Shard, other: Shard) -> int:
    """The dim of ``other`` in a message."""
    return other.dim + (other.dim < outermost.dim)


def resized(shape: Sequence[int], dim: int, length: int) -> list[int]:
    """``shape`` with another ``length`` along ``dim``."""
    return [*shape[:dim], length, *shape[dim + 1 :]]
