"""The one local attention of all strategies: torch's scaled_dot_product_attention.

Only rings have products of their own, block by block. Tensors are (B, *axes, Z, D): batch, the
sequence axes, heads, head size; keys and values may have fewer heads. Folding gives the kernels'
layout, (batch and other axes, Z, S, D), as a view wherever strides allow; S runs over the attended
dims in tensor order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spbench.layers.kernels import kernel
from spbench.workload.sharding import Shard


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Mask, projection and bias of one self-attention."""

    dims: tuple[int, ...]
    """The attended dims of (B, *axes, Z, D), ascending."""
    causal: bool = False
    projection: Tensor | None = None
    """(2, P, *attended lengths), whole: the projections of keys and of values."""
    bias: Tensor | None = None
    """(B, S, S, Z), queries first, added to the scores; ``bias_shard`` cuts its queries."""
    bias_shard: Shard | None = None


def fold(x: Tensor, dims: Sequence[int]) -> Tensor:
    """(B, *axes, Z, D) -> (B x other axes, Z, S, D), S over ``dims``."""
    moved = x.movedim(list(dims), list(range(-2 - len(dims), -2)))
    length = math.prod(moved.shape[-2 - len(dims) : -2])
    return moved.reshape(-1, length, *moved.shape[-2:]).transpose(1, 2)


def unfold(folded: Tensor, shape: Sequence[int], dims: Sequence[int]) -> Tensor:
    """(B x other axes, Z, S, D) -> (B, *axes, Z, D) of ``shape``."""
    last = range(-2 - len(dims), -2)
    others = [n for dim, n in enumerate(shape[:-2]) if dim not in dims]
    lengths = [shape[dim] for dim in dims]
    moved = folded.transpose(1, 2).reshape(*others, *lengths, *shape[-2:])
    return moved.movedim(list(last), list(dims))


def attend_whole(q: Tensor, k: Tensor, v: Tensor, scores: Scores) -> Tensor:
    """Attention along whole axes, with every other axis as batch, in the shape of ``q``.

    A bias must be whole too: (B, S, S, Z) with as many heads as ``q``.
    """
    folded = [fold(x, scores.dims) for x in (q, k, v)]
    if scores.projection is not None:
        folded[1:] = project(folded[1], folded[2], scores.projection)
    if scores.bias is None:
        out = kernel(*folded, is_causal=scores.causal)
    else:
        # One sample after another: the kernels want the same bias for their whole batch.
        samples = zip(*(x.chunk(q.shape[0]) for x in folded), scores.bias, strict=True)
        outs = [kernel(*qkv, attn_mask=bias.permute(2, 0, 1)[None]) for *qkv, bias in samples]
        out = torch.cat(outs) if len(outs) > 1 else outs[0]
    return unfold(out, q.shape, scores.dims)


def project(k: Tensor, v: Tensor, projection: Tensor) -> list[Tensor]:
    """Folded keys and values (b, Z, S, D) -> (b, Z, P, D); a part of S gives a partial sum."""
    return [matrix @ x for matrix, x in zip(projection.flatten(2), (k, v), strict=True)]
