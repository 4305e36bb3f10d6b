"""Arithmetic in the memory of an operand, since a row of scores is too large to hold twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from spbench.workload.sharding import runs_of, shard_sizes

PARTS, LEAST_ELEMENTS = 8, 2**20
"""Parts of a row of scores whose gradients are computed one after another, unless that makes them
smaller than this: a processor's cache holds a part, and memory for a whole row costs more time."""


def summed_products(
    products: Sequence[tuple[slice, Tensor, Tensor]], length: int, dim: int
) -> Tensor:
    """(b, m, n), which has ``length`` along ``dim``, from products that belong to slices of it.

    They are summed in float32 at least.
    """
    (_, left, right), *more = products
    shape = [len(left), left.shape[1], right.shape[2]]
    if not more and shape[dim] == length:
        return left @ right
    shape[dim] = length
    total = left.new_zeros(shape, dtype=torch.promote_types(left.dtype, torch.float32))
    for place, left, right in products:
        add_product_(total.narrow(dim, place.start, place.stop - place.start), left, right)
    return total.to(right.dtype)


def add_product_(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total (b, m, n) += left (b, m, k) x right (b, k, n), which may be less precise."""
    if total.dtype == left.dtype:
        total.baddbmm_(left, right)
    else:
        total += left @ right


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
