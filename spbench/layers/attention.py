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
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from spbench.workload.sharding import Shard, shard_sizes

FASTEST_FIRST = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]
"""Kernels of a GPU; the first that takes dtype, head size and mask serves all strategies."""
HOPPER = (9, 0)
OPERATIONS = {
    "_scaled_dot_product_cudnn_attention": "cudnn",
    "_scaled_dot_product_flash_attention": "flash",
    "_scaled_dot_product_flash_attention_for_cpu": "flash",
    "_scaled_dot_product_efficient_attention": "efficient",
    "_safe_softmax": "math",
}
"""Names of kernels by the operations that they begin with; math consists of plain products."""


@final
@dataclass(frozen=True, kw_only=True)
class KernelLimits:
    """The most that one call of a kernel takes; kernels of a GPU fail beyond, or compute wrongly.

    A CPU would need none, and keeps to the same, so that its gate proves what a GPU runs.
    """

    folded_batch: int = 65_535
    """Flash and the memory-efficient kernel have the batch along y or z of CUDA's grid, where at
    most 65,535 blocks fit."""
    elements: int = 2**31 - 1
    """Kernels count elements with signed integers of 32 bits."""
    length_multiple: int = 128
    """Flash's backward sums up the queries' gradient in a buffer of such lengths."""
    head_multiple: int = 32
    """Head sizes of that buffer are multiples of this."""


LIMITS = KernelLimits()


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


def kernel(q: Tensor, k: Tensor, v: Tensor, *, limits: KernelLimits = LIMITS, **how: Any) -> Tensor:
    """Attention of (b, Z, S, D), with as many heads of k and v as of q, or a divisor of that.

    Beyond ``limits`` the folded batch b goes in as few equal chunks as they allow, which are views;
    only what comes out is copied. An ``attn_mask`` is the same for the whole batch.
    """
    count = chunks(q, k, limits, masked="attn_mask" in how)
    if count == 1:
        return _call(q, k, v, **how)
    sizes = list(shard_sizes(q.shape[0], count))
    parts = zip(*(x.split(sizes) for x in (q, k, v)), strict=True)
    # Joined in the layout that kernels write, (b, S, Z, D), as one call would leave it.
    return torch.cat([_call(*part, **how).transpose(1, 2) for part in parts]).transpose(1, 2)


def chunks(q: Tensor, k: Tensor, limits: KernelLimits, *, masked: bool) -> int:
    """The smallest number of chunks of the folded batch that are within ``limits``."""
    batch, heads, queries, head_dim = q.shape
    rows, keys = (_round_up(n, limits.length_multiple) for n in (queries, k.shape[2]))
    largest = heads * max(rows, keys) * _round_up(head_dim, limits.head_multiple)
    if masked:  # whose gradient the memory-efficient kernel writes for each of the batch
        largest = max(largest, heads * rows * keys)
    fitting = max(1, min(limits.folded_batch, limits.elements // max(1, largest)))
    return max(1, -(-batch // fitting))


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _call(q: Tensor, k: Tensor, v: Tensor, **how: Any) -> Tensor:
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


@final
class KernelsSeen(TorchDispatchMode):
    """Notes which kernels of torch serve the attention that runs inside. Not for timed steps."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self._seen.add(getattr(func, "__name__", "").partition(".")[0])
        return func(*args, **(kwargs or {}))

    @property
    def names(self) -> list[str]:
        """The kernels, fastest first; empty where all attention is a strategy's own products."""
        seen = (kernel for operation, kernel in OPERATIONS.items() if operation in self._seen)
        return list(dict.fromkeys(seen))
