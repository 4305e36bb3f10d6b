"""yunchang's own USP: ``yunchang.LongContextAttention``, Ulysses among neighbours, a ring across.

    q, k, v   (b, S/N, Z, D)     --an all-to-all each-->   (b, U S/N, Z/U, D)
    out       blocks of K and V go round R = N / U groups   2 (R - 1) K / N sent
    dK, dV    the blocks once more, and their gradients     2 (R - 1) K / N and 2 R w K / N
    out       (b, U S/N, Z/U, D) --another-->               (b, S/N, Z, D)

K the bytes of all keys, w = 4 bytes over those of the dtype. ``patched`` has right gradients in
float32, see ``flash_rings``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from spbench.vendors.flash_rings import ring_sent
from spbench.vendors.unified import Unified
from spbench.vendors.vendor import Call
from spbench.vendors.yunchang_layers import usp_layer
from spbench.workload.traffic import Traffic


@final
@dataclass(frozen=True, kw_only=True)
class YunchangUSP(Unified):
    """Its layer, under a mask with the zigzag ring."""

    forms: ClassVar[tuple[str, ...]] = ("patched",)
    package: ClassVar[str] = "yunchang"
    flash: ClassVar[bool] = True
    wrong_in_float32: ClassVar[bool] = True
    dtypes: ClassVar[tuple[str, ...]] = ("float32", "bfloat16", "float16")
    patched: bool = False

    def exchange(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        size = int(self.ulysses)
        layer = usp_layer(size, call.group.size() // size, call.causal, self.patched)
        out: Tensor = layer(q, k, v, causal=call.causal)
        return out

    def ring_sent(self, keys: int, wide: int, ranks: int, groups: int) -> Traffic:
        return ring_sent(keys, wide, ranks, groups)
