"""torch's ring of attention blocks as a differentiable function, over the kernel of a CPU.

The public ``context_parallel`` has no rule for that kernel; the template that it calls takes any.
"""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from spbench.errors import Failure
from spbench.vendors.vendor import Call

FLASH = "_scaled_dot_product_flash_attention_for_cpu"


@final
class RingTemplate(torch.autograd.Function):
    """``apply(q, k, v, call, rotation)``: q, k, v are (b, Z, S/N, D), as is the result."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, call: Call, rotation: str) -> Tensor:
        if q.device.type != "cpu":
            raise Failure("the adapter of torch's ring has a kernel for CPUs alone; --device cpu")
        ctx.how = call, rotation
        torchs, kernel = _prepared(call, rotation), getattr(torch.ops.aten, FLASH)
        ring = torchs._templated_ring_attention
        out, lse, *_ = ring(call.group, 2, kernel, q, k, v, is_causal=call.causal)
        ctx.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        call, rotation = ctx.how
        torchs, kernel = _prepared(call, rotation), getattr(torch.ops.aten, f"{FLASH}_backward")
        ring, given = torchs._templated_ring_attention_backward, (grad.contiguous(), "grad_out")
        how = {"is_causal": call.causal, "dropout_p": 0.0}
        grads = ring(call.group, 2, kernel, *given, *ctx.saved_tensors, **how)
        return *grads[:3], None, None


def _prepared(call: Call, rotation: str) -> Any:
    """torch's module, with its process-wide options as a call needs them."""
    from torch.distributed.tensor.experimental._context_parallel import _attention

    _attention._cp_options.enable_load_balance = call.causal
    _attention.set_rotate_method(rotation)
    return _attention
