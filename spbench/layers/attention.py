"""The one local attention of all strategies: torch's scaled_dot_product_attention.

Only rings have products of their own, block by block. Tensors are (B, *axes, Z, D): batch, the
sequence axes, heads, head size; keys and values may have fewer heads. Folding gives the kernels'
layout, (batch and other axes, Z, S, D), as a view wherever strides allow.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from spbench.comm.resharding import memory_order, undone
from spbench.layers.kernels import kernel
from spbench.layers.memory_order import reshaped
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


@final
@dataclass(frozen=True)
class Folding:
    """The order in which (B, *axes, Z, D) is folded to (B x other axes, Z, S, D)."""

    shape: tuple[int, ...]
    dims: tuple[int, ...]
    """The attended dims, in the order in which S runs over them."""
    others: tuple[int, ...]
    """The other dims, in the order of the folded batch."""

    @classmethod
    def of(
        cls, shape: Sequence[int], dims: Sequence[int], order: Sequence[int] | None = None
    ) -> "Folding":
        """The batch in this order; by default in tensor order, which is the same on every rank."""
        order = range(len(shape) - 2) if order is None else order
        return cls(tuple(shape), tuple(dims), tuple(dim for dim in order if dim not in dims))

    @classmethod
    def as_in_memory(cls, x: Tensor, scores: Scores) -> "Folding":
        """The batch as it lies in memory, and S where its order is free: folding need not copy."""
        order = memory_order(x, 2)[:-2]
        ordered = scores.causal or scores.projection is not None
        dims = scores.dims if ordered else sorted(scores.dims, key=order.index)
        return cls.of(x.shape, dims, order)

    def fold(self, x: Tensor) -> Tensor:
        """Folds ``x``, which may have fewer heads and another length."""
        moved = x.permute(*self.others, *self.dims, x.ndim - 2, x.ndim - 1)
        length = math.prod(x.shape[dim] for dim in self.dims)
        return reshaped(moved, (-1, length, *x.shape[-2:])).transpose(1, 2)

    def unfold(self, folded: Tensor) -> Tensor:
        leading = (*self.others, *self.dims)
        lengths = (self.shape[dim] for dim in leading)
        apart = reshaped(folded.transpose(1, 2), (*lengths, *folded.shape[1::2]))
        return apart.permute(*undone(leading), -2, -1)


def attend_whole(q: Tensor, k: Tensor, v: Tensor, scores: Scores) -> Tensor:
    """Attention along whole axes, with every other axis as batch, in the shape of ``q``.

    A bias must be whole too: (B, S, S, Z) with as many heads as ``q``.
    """
    ordered = scores.bias is not None  # by sample
    folding = Folding.of(q.shape, scores.dims) if ordered else Folding.as_in_memory(q, scores)
    folded = [folding.fold(x) for x in (q, k, v)]
    if scores.projection is not None:
        folded[1:] = project(folded[1], folded[2], scores.projection)
    if scores.bias is None:
        out = kernel(*folded, is_causal=scores.causal)
    else:
        # One sample after another: the kernels want the same bias for their whole batch.
        samples = zip(*(x.chunk(q.shape[0]) for x in folded), scores.bias, strict=True)
        # A GPU's kernel takes a bias whose last dim is one run of memory; else it is products.
        outs = [
            kernel(*qkv, attn_mask=bias.permute(2, 0, 1)[None].contiguous())
            for *qkv, bias in samples
        ]
        out = torch.cat(outs) if len(outs) > 1 else outs[0]
    return folding.unfold(out)


def project(k: Tensor, v: Tensor, projection: Tensor) -> list[Tensor]:
    """Folded keys and values (b, Z, S, D) -> (b, Z, P, D); a part of S gives a partial sum."""
    return [matrix @ x for matrix, x in zip(projection.flatten(2), (k, v), strict=True)]
