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
from typing import final

from spbench.vendors.unified import Unified
from spbench.vendors.yunchang_layers import OfYunchang


@final
@dataclass(frozen=True, kw_only=True)
class YunchangUSP(Unified, OfYunchang):
    """Its layer with neighbours that share the heads."""
