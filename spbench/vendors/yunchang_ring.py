"""yunchang's own ring: ``yunchang.LongContextAttention`` with a Ulysses degree of 1.

    out        blocks of K and V go round                      2 f K sent
    dQ, dK, dV the blocks once more, and their gradients home  2 f K and 2 w K

f = (N - 1) / N, K the bytes of all keys, w = 4 bytes over those of the dtype. ``patched`` has right
gradients in float32, see ``flash_rings``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from spbench.vendors.yunchang_layers import OfYunchang


@final
@dataclass(frozen=True, kw_only=True)
class YunchangRing(OfYunchang):
    """Its layer with a ring of all ranks."""
