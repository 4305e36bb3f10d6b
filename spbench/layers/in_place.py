"""Arithmetic in the memory of an operand, since a row of scores is too large to hold twice."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from spbench.workload.sharding import runs_of, shard_sizes

PARTS, LEAST_ELEMENTS = 8, 2**20
"""Parts of a row of scores whose gradients are computed one after another, unless that makes them
smaller than this: a processor's cache holds a part, and memory for a whole row costs more time."""

SMALL = range(150, 400)
"""Multiplications of two matrices that torch does number by number on a CPU, since they are fewer
than 400, in up to four times the time of its library with zeros enough to make them 400."""


def summed_products(
    products: Sequence[tuple[slice, Tensor, Tensor]], length: int, dim: int
) -> Tensor:
    """(b, m, n), which has ``length`` along ``dim``, from products that belong to slices of it.

    They are summed in float32 at least.
    """
    (_, left, right), *more = products
    shape = [len(left), left.shape[1], right.shape[2]]
    if not more and shape[dim] == length:
        return _product(left, right, dim)
    shape[dim] = length
    total = left.new_zeros(shape, dtype=torch.promote_types(left.dtype, torch.float32))
    for place, left, right in products:
        part = total.narrow(dim, place.start, place.stop - place.start)
        if part.dtype == left.dtype:
            part.baddbmm_(left, right)
        else:
            part += left @ right
    return total.to(right.dtype)


def _product(left: Tensor, right: Tensor, dim: int) -> Tensor:
    """(b, m, k) times (b, k, n); small ones with zeros: rows that are left out again, or, where
    ``dim`` is 2 and the result is to lie without gaps, more to sum over."""
    (_, m, k), n = left.shape, right.shape[2]
    if m * k * n not in SMALL or left.element_size() < 4:
        return left @ right
    if dim == 1:
        return (F.pad(left, (0, 0, 0, -(-SMALL.stop // (k * n)) - m)) @ right)[:, :m]
    zeros = (0, 0, 0, -(-SMALL.stop // (m * n)) - k)
    return F.pad(left.mT, zeros).mT @ F.pad(right, zeros)


def softmax_backward_(weights: Tensor, gradient_of: Callable[[slice], Tensor]) -> Tensor:
    """Overwrites softmax's result (b, m, n) with the gradient of its input.

    ``gradient_of``: that of some of the batch of ``weights``. No more of it is held at a time.
    """
    count = max(1, min(PARTS, len(weights), weights.numel() // LEAST_ELEMENTS))
    for first, length in runs_of(shard_sizes(len(weights), count)):
        part = slice(first, first + length)
        grad, own = gradient_of(part), weights[part]
        torch.ops.aten._softmax_backward_data.out(grad, own, -1, own.dtype, grad_input=own)
    return weights
