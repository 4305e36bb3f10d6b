"""Attention of tensors without data, on torch's device ``meta``, as one operation.

There torch would take it apart into products, which no device does that has a kernel for it.
"""

from __future__ import annotations

import torch
from torch import Tensor

aten = torch.ops.aten


def one_operation(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    enable_gqa: bool,
    is_causal: bool = False,
    attn_mask: Tensor | None = None,
) -> Tensor:
    """The operation that a GPU would run, in place of ``scaled_dot_product_attention``.

    With a mask, whose gradient no other has, the memory-efficient one, which takes no groups.
    """
    assert attn_mask is None or not enable_gqa
    if attn_mask is None:
        return aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, is_causal)[0]
    bias = attn_mask.expand(*q.shape[:3], k.shape[2])
    return aten._scaled_dot_product_efficient_attention(q, k, v, bias, True, 0.0, is_causal)[0]
