"""Arithmetic in the memory of an operand, since a row of scores is too large to hold twice."""

from __future__ import annotations

import torch
from torch import Tensor


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
