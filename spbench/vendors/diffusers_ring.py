"""diffusers' own ring: its context parallel with ``ring_degree=N``.

    out            all K and V by one all-gather, merged block by block    2 f K sent
    dQ, dK, dV     gathered once more; gradients by N permutations         2 f K and 2 w K

f = (N - 1) / N, K the bytes of all keys, w = 4 bytes over those of the dtype. As shipped (0.42.1)
gradients go one rank on where the next block comes from there: from 3 ranks on dK and dV are
wrong. ``patched`` sends them one rank back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from spbench.vendors.diffusers_rings import attend, ring_sent
from spbench.vendors.vendor import Call, Vendor, float32_times
from spbench.workload.sharding import Sizes
from spbench.workload.traffic import Traffic
from spbench.workload.workload import Workload


@final
@dataclass(frozen=True, kw_only=True)
class DiffusersRing(Vendor):
    """Its ring around torch's kernel of a block."""

    forms: ClassVar[tuple[str, ...]] = ("patched",)
    package: ClassVar[str] = "diffusers"
    is_causal_too: ClassVar[bool] = False
    groups_heads: ClassVar[bool] = False
    dtypes: ClassVar[tuple[str, ...]] = ("float32", "bfloat16", "float16")
    patched: bool = False

    def exchange(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        return attend(q, k, v, 1, call.group.size(), self.patched)

    def sent(self, workload: Workload, sizes: Sizes) -> Traffic:
        wide = float32_times(workload)
        return ring_sent(2 * workload.key_bytes, wide, len(sizes), len(sizes))
