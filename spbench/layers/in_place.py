"""Arithmetic in the memory of an operand, since a row of scores is too large to hold twice."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


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


def softmax_backward_(grad: Tensor, weights: Tensor) -> Tensor:
    """Overwrites the gradient of softmax's result, ``weights``, with that of its input."""
    aten = torch.ops.aten._softmax_backward_data.out
    d_scores: Tensor = aten(grad, weights, -1, weights.dtype, grad_input=grad)
    return d_scores
