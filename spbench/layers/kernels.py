"""Kernels of attention that give the log-sum-exp of each row, and their backward from one given.

The kernel is the one that ``scaled_dot_product_attention`` would take; where it takes none, and on
a CPU where keys are few, plain products do. Tensors are (b, Z, S, D), log-sum-exps (b, Z, S); k and
v may have fewer heads.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from spbench.layers.dispatch_modes import one_operation
from spbench.layers.in_place import Tensors, has_few_keys
from spbench.workload.sharding import shard_sizes

aten = torch.ops.aten


class LseKernel(NamedTuple):
    """(causal, q, k, v) -> out, lse, and (causal, grad, q, k, v, out, lse) -> dQ, dK, dV."""

    forward: Callable[..., Tensors]
    backward: Callable[..., Tensors]
    takes_groups: bool  # whether k and v may have fewer heads than q


def with_lse(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensors:
    """Attention and its log-sum-exp; under a ``causal`` mask there are as many keys as queries."""
    kernel, *many = _served(q, k, v, causal)
    return kernel.forward(causal, q, *many)


def gradients_of(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *, causal: bool
) -> Tensors:
    """dQ, dK and dV of these keys, from the out and log-sum-exp of all keys."""
    kernel, *many = _served(q, k, v, causal)
    d_q, *d_keys = kernel.backward(causal, grad, q, *many, out, lse.contiguous())
    if many[0].shape[1] > k.shape[1]:
        by_group = (each.transpose(1, 2).unflatten(2, (k.shape[1], -1)) for each in d_keys)
        d_keys = [each.sum(3).transpose(1, 2) for each in by_group]
    return d_q, *d_keys


def _served(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[LseKernel, Tensor, Tensor]:
    """The kernel, and k and v with as many heads as it wants."""
    kernel, group = _kernel(q, k, v, causal), q.shape[1] // k.shape[1]
    if group == 1 or kernel.takes_groups:
        return kernel, k, v
    k, v = (x[:, :, None].expand(-1, -1, group, -1, -1).flatten(1, 2) for x in (k, v))
    return _kernel(q, k, v, causal), k, v


@torch.enable_grad()
def _kernel(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> LseKernel:
    if has_few_keys(q, k, causal):
        return PLAIN
    if q.is_meta:
        return KERNELS[SDPBackend.FLASH_ATTENTION]  # one operation, as in watching.py
    if q.is_cuda and q.shape[-1] % 8:
        return PLAIN  # scaled_dot_product_attention would pad
    how = {"is_causal": causal, "enable_gqa": q.shape[1] != k.shape[1]}
    chosen = aten._fused_sdp_choice(q.detach().requires_grad_(), k, v, **how)  # with a backward
    return KERNELS.get(SDPBackend(chosen), PLAIN)


def _flash(causal: bool, *qkv: Tensor) -> Tensors:
    if not qkv[0].is_cuda:
        return aten._scaled_dot_product_flash_attention_for_cpu(*qkv, 0.0, causal)
    return aten._scaled_dot_product_flash_attention(*qkv, 0.0, causal)[:2]


def _flash_backward(causal: bool, *given: Tensor) -> Tensors:
    _, q, k, *_ = given
    if not q.is_cuda:
        return aten._scaled_dot_product_flash_attention_for_cpu_backward(*given, 0.0, causal)
    more = None, None, q.shape[2], k.shape[2], 0.0, causal, *_seeds(q)
    return aten._scaled_dot_product_flash_attention_backward(*given, *more)


def _cudnn(causal: bool, *qkv: Tensor) -> Tensors:
    out, lse, *_ = aten._scaled_dot_product_cudnn_attention(*qkv, None, True, 0.0, causal)
    return out, lse.view(out.shape[:-1])


def _cudnn_backward(causal: bool, *given: Tensor) -> Tensors:
    _, q, k, *_ = given
    more = *_seeds(q), None, None, None, q.shape[2], k.shape[2], 0.0, causal
    given = *given[:-1], given[-1].unsqueeze(-1)
    return aten._scaled_dot_product_cudnn_attention_backward(*given, *more)


def _efficient(causal: bool, *qkv: Tensor) -> Tensors:
    out, lse, *_ = aten._scaled_dot_product_efficient_attention(*qkv, None, True, 0.0, causal)
    return out, lse.narrow(-1, 0, out.shape[2])


def _efficient_backward(causal: bool, *given: Tensor) -> Tensors:
    grad, q, k, v, out, lse = given
    lse = torch.nn.functional.pad(lse, (0, -lse.shape[-1] % 32), value=torch.inf)  # as in forward
    more = None, out, lse, *_seeds(q), 0.0, [True, True, True, False], causal
    return aten._scaled_dot_product_efficient_attention_backward(grad, q, k, v, *more)[:3]


def _seeds(q: Tensor) -> Tensors:
    return q.new_empty((2, 2), dtype=torch.int64).unbind()  # of dropout, which is 0


own = torch.ops.spbench
PLAIN = LseKernel(own.plain_attention, own.plain_attention_backward, takes_groups=False)
KERNELS = {
    SDPBackend.CUDNN_ATTENTION: LseKernel(_cudnn, _cudnn_backward, takes_groups=True),
    SDPBackend.FLASH_ATTENTION: LseKernel(_flash, _flash_backward, takes_groups=True),
    SDPBackend.EFFICIENT_ATTENTION: LseKernel(_efficient, _efficient_backward, takes_groups=False),
}


# Which kernel serves attention, and what is handed to it in one call.
#
# Kernels differ by up to three times: every strategy asks for the same ones in the same order
# (docs/decisions/0023). Tensors are (b, Z, S, D): folded batch, heads, positions, head size.

FASTEST_FIRST = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]
"""Kernels of a GPU; the first that takes dtype, head size and mask serves all strategies."""
HOPPER = (9, 0)


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
    return sdpa_kernel(FASTEST_FIRST[older:], set_priority=True)


def kernel(q: Tensor, k: Tensor, v: Tensor, *, limits: KernelLimits = LIMITS, **how: Any) -> Tensor:
    """Attention of (b, Z, S, D), with as many heads of k and v as of q, or a divisor of that.

    Beyond ``limits`` the folded batch b goes in as few equal chunks as they allow, which are views;
    only what comes out is copied. An ``attn_mask`` is the same for the whole batch.
    """
    count = chunks(q, k, limits, masked="attn_mask" in how)
    if count == 1:
        return _call(q, k, v, **how)
    parts = zip(*(x.split(list(shard_sizes(q.shape[0], count))) for x in (q, k, v)), strict=True)
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
    if "attn_mask" not in how and has_few_keys(q, k, how.get("is_causal", False)):
        return AttentionToFewKeys.apply(q, k, v)
    group = q.shape[1] // k.shape[1]
    # In 32 bits every kernel of a GPU that takes groups would hold all scores.
    only_plain = q.is_cuda and q.dtype not in (torch.bfloat16, torch.float16)
    if group > 1 and ("attn_mask" in how or only_plain):
        k, v = (x[:, :, None].expand(-1, -1, group, -1, -1).flatten(1, 2) for x in (k, v))
        group = 1
    attention = one_operation if q.is_meta else F.scaled_dot_product_attention
    return attention(q, k, v, enable_gqa=group > 1, **how)


@final
class AttentionToFewKeys(torch.autograd.Function):
    """Attention by plain products, whose weights backward computes anew, as a kernel does."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out, lse = with_lse(q, k, v, causal=False)
        ctx.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensors:
        return gradients_of(grad, *ctx.saved_tensors, causal=False)
