"""diffusers' own USP: its context parallel with ``ulysses_degree`` and ``ring_degree``.

    q, k, v   (b, S/N, Z, D)     --an all-to-all each-->   (b, U S/N, Z/U, D)
    out       its ring across R = N / U groups              2 (R - 1) K / N sent
    dK, dV    the same once more, and gradients             2 (R - 1) K / N and 2 R w K / N
    out       (b, U S/N, Z/U, D) --another-->               (b, S/N, Z, D)

K the bytes of all keys, w = 4 bytes over those of the dtype. Wrong as shipped from 3 groups on, and
right with ``patched``, as ``diffusers-ring`` is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from spbench.vendors.diffusers_rings import attend, ring_sent
from spbench.vendors.unified import Unified
from spbench.vendors.vendor import Call
from spbench.workload.traffic import Traffic


@final
@dataclass(frozen=True, kw_only=True)
class DiffusersUSP(Unified):
    """Its unified attention around torch's kernel of a block."""

    forms: ClassVar[tuple[str, ...]] = ("patched",)
    package: ClassVar[str] = "diffusers"
    is_causal_too: ClassVar[bool] = False
    groups_heads: ClassVar[bool] = False
    dtypes: ClassVar[tuple[str, ...]] = ("float32", "bfloat16", "float16")
    patched: bool = False

    def exchange(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        size = int(self.ulysses)
        return attend(q, k, v, size, call.group.size() // size, self.patched)

    def ring_sent(self, keys: int, wide: int, ranks: int, groups: int) -> Traffic:
        return ring_sent(keys, wide, ranks, groups)
