"""The one local attention of all strategies: torch's scaled_dot_product_attention.

Kernels differ by up to three times, which would drown what is being compared. Tensors are
(B, *axes, Z, D): batch, the sequence axes, heads, head size. Folding puts them as the kernel
wants them, (batch and other axes, Z, S, D), as a view wherever strides allow.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def fold(x: Tensor, along: int) -> Tensor:
    """(B, *axes, Z, D) -> (B x other axes, Z, S, D), S the length along dim ``along``."""
    moved = x.movedim(along, -3)
    return moved.reshape(-1, *moved.shape[-3:]).transpose(1, 2)


def unfold(folded: Tensor, like: Tensor, along: int) -> Tensor:
    """The way back, to the dims of ``like`` except its length along ``along``."""
    others = like.movedim(along, -3).shape[:-3]
    return folded.transpose(1, 2).reshape(*others, -1, *like.shape[-2:]).movedim(-3, along)


def attend_whole(q: Tensor, k: Tensor, v: Tensor, along: int) -> Tensor:
    """Attention along one whole axis; every other axis is batch. Shape of ``q``."""
    folded = F.scaled_dot_product_attention(fold(q, along), fold(k, along), fold(v, along))
    return unfold(folded, q, along)


def attend_context(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Every position of ``q`` (B, *axes, Z, D) to a context k, v of (B, L, Z, D)."""
    flat = q.flatten(1, -3).transpose(1, 2)
    out = F.scaled_dot_product_attention(flat, k.transpose(1, 2), v.transpose(1, 2))
    return out.transpose(1, 2).reshape(q.shape)
