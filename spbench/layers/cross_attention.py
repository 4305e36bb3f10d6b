"""Attention to text tokens that every rank holds whole; queries go in pieces, each to all tokens.

In backward a kernel shares out samples, heads and blocks of keys among a GPU's processors, and
the text is one block of keys. Where a rank has few heads most processors would idle: 2 heads of
a whole sequence took 27 times as long as they need (docs/decisions/0023).
"""

import math
from functools import cache

from torch import Tensor

from spbench.comm.resharding import memory_order, undone
from spbench.layers.kernels import kernel

PIECE = 1024
"""The fewest queries that the kernel gets as one sample, if there are so many."""
SHORTEST = 256
"""Queries of a sample that lie apart in memory are copied before they make shorter pieces."""
LONGER = 8
"""The least length of a piece over that of the text, whose whole gradient each piece has."""


def cross_attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of every position of ``q`` (B, *axes, Z, D) to all of k, v (B, L, Z, D)."""
    longer = LONGER * k.shape[1]
    order = memory_order(q, 2)
    sample = order.index(0)
    if math.prod(q.shape[dim] for dim in order[sample + 1 : -2]) < max(SHORTEST, longer):
        order, sample = [0, *(dim for dim in order if dim)], 0  # else pieces would be short
    ordered = q.permute(order)
    flat = ordered.flatten(sample + 1, -3)
    *batch, queries = flat.shape[:-2]
    count = pieces(queries, max(PIECE, longer))
    cut = flat.unflatten(-3, (count, queries // count)).flatten(0, sample + 1)
    keys, values = (
        x[:, None].expand(*batch, count, *x.shape[1:]).flatten(0, sample + 1) for x in (k, v)
    )
    out = kernel(*(x.transpose(1, 2) for x in (cut, keys, values)))
    return out.transpose(1, 2).reshape(ordered.shape).permute(undone(order))


@cache
def pieces(queries: int, least: int) -> int:
    """The number of equal pieces of at least ``least`` queries; 1 where no divisor gives such."""
    return next(count for count in range(max(1, queries // least), 0, -1) if queries % count == 0)
