"""yunchang's own ring: ``yunchang.LongContextAttention`` with a Ulysses degree of 1.

    out        blocks of K and V go round                      2 f K sent
    dQ, dK, dV the blocks once more, and their gradients home  2 f K and 2 w K

f = (N - 1) / N, K the bytes of all keys, w = 4 bytes over those of the dtype. ``patched`` has right
gradients in float32, see ``flash_rings``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from spbench.vendors.flash_rings import ring_sent
from spbench.vendors.vendor import Call, HeadTailPlan, Vendor, VendorPlan, float32_times
from spbench.vendors.yunchang_layers import usp_layer
from spbench.workload.sharding import Sizes
from spbench.workload.traffic import Traffic
from spbench.workload.workload import Workload


@final
@dataclass(frozen=True, kw_only=True)
class YunchangRing(Vendor):
    """Its ring, under a mask the zigzag one."""

    forms: ClassVar[tuple[str, ...]] = ("patched",)
    plan: ClassVar[type[VendorPlan]] = HeadTailPlan
    package: ClassVar[str] = "yunchang"
    flash: ClassVar[bool] = True
    wrong_in_float32: ClassVar[bool] = True
    dtypes: ClassVar[tuple[str, ...]] = ("float32", "bfloat16", "float16")
    patched: bool = False

    def exchange(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        layer = usp_layer(1, call.group.size(), call.causal, self.patched)
        out: Tensor = layer(q, k, v, causal=call.causal)
        return out

    def sent(self, workload: Workload, sizes: Sizes) -> Traffic:
        wide = float32_times(workload)
        return ring_sent(2 * workload.key_bytes, wide, len(sizes), len(sizes))
