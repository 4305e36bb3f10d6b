"""How far a tensor is from what it should be, relative to the size of the whole."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def relative_error(got: Tensor, wanted: Tensor, whole: Tensor, floor: float = 0.0) -> float:
    """Root mean square of got - wanted, over that of the whole tensor that ``wanted`` is of.

    Shapes that differ are infinitely wrong, and so is anything but zero where all is zero,
    or, with a ``floor``, what is not small beside that.
    """
    if got.shape != wanted.shape:
        return math.inf
    precise = torch.promote_types(wanted.dtype, torch.float32)
    difference = root_mean_square(got.to(precise) - wanted.to(precise))
    size = max(floor, root_mean_square(whole.to(precise)))
    if difference == 0.0:
        return 0.0
    return difference / size if size else math.inf


def root_mean_square(x: Tensor) -> float:
    norm: float = torch.linalg.vector_norm(x).item()
    return norm / max(1, x.numel()) ** 0.5
