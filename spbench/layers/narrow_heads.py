"""A CPU's attention of narrow heads, with zeros behind each row up to the size that it is fast at.

torch's flash attention on a CPU takes 1.2 to 2.4 times as long with 4 to 15 numbers a head as with
16, from which on it packs keys. Zeros change no score, and are cut off the result. Long sequences
in 32 bits gain (docs/decisions/0045). Tensors are (b, Z, S, D); log-sum-exps (b, Z, S).
"""

from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor

from spbench.layers.watching import is_on_gpu

aten = torch.ops.aten
FAST = 16
"""The smallest head size that torch's kernel is fast at."""
LONG = {4: (48, 128), 12: (512, 512)}
"""Queries and keys from which zeros gain more than they take to write, by the least head size that
these lengths hold for."""


def is_narrow(q: Tensor, k: Tensor) -> bool:
    """Whether flash attention of these may run, and is faster with zeros behind each row."""
    size = q.shape[3]
    if not min(LONG) <= size < FAST or q.dtype != torch.float32 or is_on_gpu(q):
        return False
    queries, keys = LONG[max(least for least in LONG if least <= size)]
    is_long = q.shape[2] >= queries and k.shape[2] >= keys
    return is_long and torch.backends.cuda.flash_sdp_enabled()  # the CPU's, too


def flash(causal: bool, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Attention on a CPU, in the memory order (b, S, Z, D), and its log-sum-exp."""
    kernel, size = aten._scaled_dot_product_flash_attention_for_cpu, q.shape[-1]
    if not is_narrow(q, k):
        return kernel(q, k, v, 0.0, causal)
    out, lse = kernel(*map(_widened, (q, k, v)), 0.0, causal, scale=size**-0.5)
    return _narrowed(out, size), lse


def flash_backward(causal: bool, *given: Tensor) -> tuple[Tensor, ...]:
    """dQ, dK and dV, in the memory order (b, S, Z, D), from the gradient, q, k, v, out and lse."""
    kernel = aten._scaled_dot_product_flash_attention_for_cpu_backward
    (_, q, k, *_), size = given, given[0].shape[-1]
    if not is_narrow(q, k):
        return kernel(*given, 0.0, causal)
    wide = kernel(*map(_widened, given[:5]), given[5], 0.0, causal, scale=size**-0.5)
    return tuple(_narrowed(x, size) for x in wide)


def _widened(x: Tensor) -> Tensor:
    return F.pad(x, (0, FAST - x.shape[-1]))


def _narrowed(x: Tensor, size: int) -> Tensor:
    return x[..., :size].transpose(1, 2).contiguous().transpose(1, 2)


@final
class NarrowAttention(torch.autograd.Function):
    """Attention of (causal, q, k, v), which keeps what backward wants as narrow as it came."""

    @staticmethod
    def forward(ctx: Any, causal: bool, *qkv: Tensor) -> Tensor:
        out, lse = flash(causal, *qkv)
        ctx.save_for_backward(*qkv, out, lse)
        ctx.causal = causal
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return None, *flash_backward(ctx.causal, grad, *ctx.saved_tensors)
