"""Kernels of attention that give the log-sum-exp of each row, and their backward from one given.

The kernel is the one that ``scaled_dot_product_attention`` would take; where it takes none, and on
a CPU where keys are few, plain products do. Tensors are (b, Z, S, D), log-sum-exps (b, Z, S); k and
v may have fewer heads.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

from spbench.layers.in_place import Tensors, has_few_keys

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
