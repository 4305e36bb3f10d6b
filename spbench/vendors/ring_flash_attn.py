"""The package ring-flash-attn: its ``ring_flash_attn_func``, under a mask the zigzag one.

    out        blocks of K and V go round                      2 f K sent
    dQ, dK, dV the blocks once more, and their gradients home  2 f K and 2 w K

f = (N - 1) / N, K the bytes of all keys, w = 4 bytes over those of the dtype. Its kernels are
flash_attn's, or torch's where that is not installed. ``patched`` has right gradients in float32,
see ``flash_rings``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from spbench.vendors.flash_attn_stand_in import flash_attn_there
from spbench.vendors.flash_rings import OverFlash, patched_ring
from spbench.vendors.package import standing_in
from spbench.vendors.vendor import Call

UNUSED = "substitute_hf_flash_attn", "update_ring_flash_attn_params"
WITHOUT_ADAPTERS = {"ring_flash_attn.adapters": dict.fromkeys(UNUSED)}
"""Its adapters for models import names that transformers 5 has no more; nothing here calls them."""


@final
@dataclass(frozen=True, kw_only=True)
class RingFlashAttn(OverFlash):
    """Its functions."""

    package: ClassVar[str] = "ring-flash-attn"

    def exchange(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        with flash_attn_there(), standing_in(WITHOUT_ADAPTERS):
            import ring_flash_attn

        ring = ring_flash_attn.ring_flash_attn_func
        if self.patched:
            ring = patched_ring("ring_flash_attn", call.causal)
        elif call.causal:
            ring = ring_flash_attn.zigzag_ring_flash_attn_func
        out: Tensor = ring(q, k, v, causal=call.causal, group=call.group)
        return out
