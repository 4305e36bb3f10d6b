"""flash_attn's functions over torch's kernels, for packages that import it where there is none.

flash_attn is built for GPUs and 16 bits alone. Packages call it inside a ring, or behind an
all-to-all; what stands here takes any dtype and device, and computes the same: of q, k and v
(b, S, Z, D) the result, and log-sum-exps (b, Z, S).
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from typing import Any

from torch import Tensor

from spbench.layers.kernels import gradients_of, with_lse
from spbench.vendors.package import standing_in
from spbench.vendors.vendor import plain

VERSION = "2.8.0"
"""The version whose signatures these are."""


def flash_attn_there() -> AbstractContextManager[None]:
    """Inside, an import of flash_attn finds it, or else these functions."""
    if find_spec("flash_attn") is not None:
        return nullcontext()
    own: dict[str, Any] = {f.__name__: f for f in FUNCTIONS}
    own |= dict.fromkeys(("_flash_attn_varlen_forward", "_flash_attn_varlen_backward"))
    interface = {"flash_attn.flash_attn_interface": own}
    return standing_in({"flash_attn": {**own, "__version__": VERSION}} | interface)


def _flash_attn_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    **_: Any,
) -> tuple[Tensor, Tensor, None, None]:
    out, lse = with_lse(*(x.transpose(1, 2) for x in (q, k, v)), causal=causal)
    return out.transpose(1, 2), lse, None, None


def _flash_attn_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    *_: Any,
    **_named: Any,
) -> None:
    dout, q, k, v, out = (x.transpose(1, 2) for x in (dout, q, k, v, out))
    found = gradients_of(dout, q, k, v, out, softmax_lse, causal=causal)
    for into, gradient in zip((dq, dk, dv), found, strict=True):
        into.copy_(gradient.transpose(1, 2))


def flash_attn_func(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, **_: Any) -> Tensor:
    return plain(q, k, v, causal=causal)


FUNCTIONS = _flash_attn_forward, _flash_attn_backward, flash_attn_func
