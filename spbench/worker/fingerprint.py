"""Fingerprints of a step's tensors at their full size, each rank from its own part.

A projection is the sum over all elements, each times one random sign for its place along every dim.
So it is a chain of products with one vector a dim, of which a rank needs what its part covers; the
projections of the parts add up to that of the whole. All of it is in float64, a slice at a time: no
copy of a tensor is made, and the cost is a few reads of each.

Axes of the model that are one dim of a tensor have a sign each: the fingerprint is that of the
tensor with a dim for each, so that strategies that cut them otherwise are compared.
"""

import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import prod
from types import MappingProxyType

import torch
from torch import Tensor

from spbench.results.agreement import Fingerprint
from spbench.text import grouped
from spbench.workload.sharding import Shard, Shards

PROJECTIONS = 4
SLICE = 2**19
"""Elements that are converted to float64 at a time."""

Grids = Mapping[int, Sequence[int]]
"""Dims of a tensor that are axes, one of the model's or several in a row, and their lengths."""
NO_GRIDS: Mapping[str, Grids] = MappingProxyType({})
Gather = Callable[[Sequence[float]], list[list[float]]]
"""Every rank's numbers, by rank."""


@torch.no_grad()
def fingerprint(
    tensors: Mapping[str, Tensor],
    cuts: Mapping[str, Shards],
    rank: int,
    gather: Gather,
    grids: Mapping[str, Grids] = NO_GRIDS,
) -> Fingerprint:
    """The fingerprint of the whole tensors, equal on every rank. Every rank must call it.

    Of ranks that hold the same part that one counts which is farthest from their mean, so that a
    fault of one rank shows.

    Parameters
    ----------
    tensors
        This rank's parts, by name.
    cuts
        Which part of each a rank holds; none: all of it.
    rank
        This rank.
    gather
        Gives every rank's numbers, by rank.
    grids
        Those of tensors with axes; a dim that is in none is one by itself.

    Returns
    -------
    By tensor the elements of the whole, its squared norm and its projections.
    """
    mine = torch.stack(
        [_numbers(name, x, cuts[name], rank, grids.get(name, {})) for name, x in tensors.items()]
    )
    ranks = torch.tensor(gather(mine.flatten().tolist()), dtype=torch.float64)
    # (ranks, tensors x (1 + projections)) -> of each tensor (ranks, 1 + projections)
    by_tensor = ranks.view(-1, *mine.shape).unbind(1)  # of each tensor (ranks, 1 + projections)
    return {
        name: [
            float(_elements(x, cuts[name])),
            *torch.stack([*map(_farthest, _copies(by_rank, cuts[name]))]).sum(0).tolist(),
        ]
        for (name, x), by_rank in zip(tensors.items(), by_tensor, strict=True)
    }


def whole_fingerprint(
    tensors: Mapping[str, Tensor], grids: Mapping[str, Grids] = NO_GRIDS
) -> Fingerprint:
    """The fingerprint of tensors that this process holds whole."""
    uncut: Mapping[str, Shards] = dict.fromkeys(tensors, ())
    return fingerprint(tensors, uncut, 0, lambda numbers: [list(numbers)], grids)


def _copies(by_rank: Tensor, cuts: Shards) -> list[Tensor]:
    """The rows of ranks, those together whose ranks hold the same part."""
    same = grouped(range(len(by_rank)), lambda rank: tuple(cut.runs[rank] for cut in cuts))
    return [by_rank[ranks] for ranks in same.values()]


def _farthest(by_rank: Tensor) -> Tensor:
    """The row that is farthest from the mean of all; NaN is farther than anything."""
    distances = (by_rank - by_rank.mean(0)).square().sum(1).nan_to_num()
    broken = by_rank.sum(1).isfinite().logical_not()  # one NaN makes all distances NaN
    return by_rank[distances.masked_fill(broken, torch.inf).argmax()]


def _elements(x: Tensor, cuts: Shards) -> int:
    """Elements of the whole tensor that ``x`` is a part of."""
    # A dim that is cut counts with its whole length, others with that at hand.
    lengths = dict(enumerate(x.shape)) | {cut.dim: cut.length for cut in cuts}
    return prod(lengths.values())


def _numbers(name: str, x: Tensor, cuts: Shards, rank: int, grids: Grids) -> Tensor:
    """The squared norm and the projections of this rank's part."""
    if not x.numel():
        return torch.zeros(1 + PROJECTIONS, dtype=torch.float64, device=x.device)
    of_dims = {cut.dim: cut for cut in cuts}
    signs, axis = [], 0
    for dim in range(x.ndim):
        cut = of_dims.get(dim)
        lengths = grids.get(dim, [x.shape[dim] if cut is None else cut.length])
        signs.append(_signs(name, axis, lengths, cut, rank).to(x.device))
        axis += len(lengths)
    # A copied key head counts in part on each holder, by the root in the signs and in the numbers.
    for cut in cuts:
        if (shares := _shares(cut, rank)) is not None:
            root = shares.to(x.device).sqrt()[:, None]
            signs[cut.dim] = signs[cut.dim] * root
            x = (x.double().movedim(cut.dim, -1) * root[:, 0]).movedim(-1, cut.dim)
    rows = x.reshape(-1, x.shape[-1])
    square = torch.zeros((), dtype=torch.float64, device=x.device)
    projected = []
    # Rows of 1,024 numbers go to float64 512 at a time: 4 MiB, whatever the tensor has.
    for part in rows.split(max(1, SLICE // rows.shape[1])):
        fine = part.double()
        square += fine.flatten().dot(fine.flatten())
        projected.append(fine @ signs[-1])
    left = torch.cat(projected)  # the last dim is gone: (all others, projections)
    for dim in reversed(range(x.ndim - 1)):
        # From the last dim but one to the first: (... x n, projections) -> (..., projections).
        left = (left.view(-1, x.shape[dim], PROJECTIONS) * signs[dim]).sum(1)
    return torch.cat([square.view(1), left.view(PROJECTIONS)])


def _shares(cut: Shard, rank: int) -> Tensor | None:
    """What each position of this rank counts, where ranks that otherwise differ hold it too; None:
    all count whole."""
    holders = Counter(run for runs in {*cut.runs} for run in runs)
    own = cut.runs[rank]
    if all(holders[run] == 1 for run in own):
        return None
    parts = [torch.full((run[1],), 1 / holders[run], dtype=torch.float64) for run in own]
    return torch.cat(parts)


def _signs(name: str, axis: int, lengths: Sequence[int], cut: Shard | None, rank: int) -> Tensor:
    """(positions, projections) of +1 and -1 along a dim, where this rank has its part.

    ``axis``: the number of the first axis that the dim is, of ``lengths``; the sign of a position
    is the product of those of its places along them.
    """
    signs = torch.ones(1, PROJECTIONS, dtype=torch.float64)
    for number, length in enumerate(lengths, axis):
        generator = torch.Generator().manual_seed(zlib.crc32(f"{name} {number}".encode()))
        coins = torch.randint(2, (length, PROJECTIONS), generator=generator)
        of_axis = coins.double().mul_(2).sub_(1)  # 0 and 1 become -1 and 1
        signs = (signs[:, None] * of_axis).flatten(0, 1)  # positions of all axes so far
    if cut is not None:
        signs = torch.cat([signs.narrow(0, *run) for run in cut.runs[rank]])
    return signs
