"""The one local attention of all strategies: torch's scaled_dot_product_attention.

Kernels differ by up to three times, which would drown what is being compared: every strategy
asks for the same kernels in the same order (docs/decisions/0023). Only rings have products of
their own, block by block. Tensors are (B, *axes, Z, D): batch, the sequence axes, heads, head
size; keys and values may have fewer heads. Folding gives the kernel's layout, (batch and other
axes, Z, S, D), as a view wherever strides allow; S runs over the attended dims in tensor order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from spbench.workload.sharding import Shard

FASTEST_FIRST = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]
"""Kernels of a GPU; the first that takes dtype, head size and mask serves all strategies."""
HOPPER = (9, 0)


def fastest_kernels(device: torch.device) -> AbstractContextManager[None]:
    """Inside, all attention of this process asks for the fastest kernel first.

    cuDNN's is the fastest on an H200, and assumed so on newer GPUs; older ones keep flash.
    """
    if device.type != "cuda":
        return nullcontext()
    older = torch.cuda.get_device_capability(device) < HOPPER
    kernels = FASTEST_FIRST[1:] if older else FASTEST_FIRST
    preferred: AbstractContextManager[None] = sdpa_kernel(kernels, set_priority=True)
    return preferred


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


def kernel(q: Tensor, k: Tensor, v: Tensor, **how: Any) -> Tensor:
    """Attention of (b, Z, S, D), with as many heads of k and v as of q, or a divisor of that."""
    group = q.shape[1] // k.shape[1]
    if group > 1 and ("attn_mask" in how or _only_plain(q)):
        k, v = (x[:, :, None].expand(-1, -1, group, -1, -1).flatten(1, 2) for x in (k, v))
        group = 1
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=group > 1, **how)


def _only_plain(q: Tensor) -> bool:
    """Whether every kernel that takes groups would hold all scores; then keys are repeated."""
    return q.is_cuda and q.dtype not in (torch.bfloat16, torch.float16)


def project(k: Tensor, v: Tensor, projection: Tensor) -> list[Tensor]:
    """Folded keys and values (b, Z, S, D) -> (b, Z, P, D); a part of S gives a partial sum."""
    return [matrix @ x for matrix, x in zip(projection.flatten(2), (k, v), strict=True)]
