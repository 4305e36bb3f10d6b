"""ColossalAI's own Ring Self-Attention, the code of Li et al. (ACL 2023): RingQK and RingAV.

    scores     K goes round                           f K sent
    out        V goes round                           f K
    dK, dV     K and V once more, and an all-reduce   2 f K and 4 f K
               each of the gradients of all keys

f = (N - 1) / N, K the bytes of all keys. As shipped (0.5.0) dQ, dK and dV come divided by N;
``patched`` they do not. Its softmax is the caller's, here in q's dtype. It has its group in a
variable of the process, and its accelerator does not synchronize on a CPU, which is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from spbench.vendors.colossalai_operations import operations
from spbench.vendors.vendor import Call, Vendor
from spbench.workload.sharding import Sizes
from spbench.workload.traffic import Traffic, Transfer
from spbench.workload.workload import Workload


@final
@dataclass(frozen=True, kw_only=True)
class ColossalAIRSA(Vendor):
    """``patched``: with gradients that are not divided."""

    forms: ClassVar[tuple[str, ...]] = ("patched",)
    keeps_scores: ClassVar[bool] = True
    package: ClassVar[str] = "colossalai"
    command: ClassVar[str] = "docs/vendors.md says how, in an environment of its own"
    order: ClassVar[str] = "b z s d"
    is_causal_too: ClassVar[bool] = False
    groups_heads: ClassVar[bool] = False
    patched: bool = False

    def exchange(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        own, (batch, heads, length, size) = operations(call.group, self.patched), q.shape
        q, k, v = (x.flatten(0, 1) for x in (q * size**-0.5, k, v))
        scores = own.RingQK.apply(q, k, batch, heads, length).softmax(-1)
        out: Tensor = own.RingAV.apply(scores, v, batch, heads, size, length)
        return out.unflatten(0, (batch, heads))

    def sent(self, workload: Workload, sizes: Sizes) -> Traffic:
        keys, ranks = workload.key_bytes, len(sizes)
        there, sums = [Transfer.ring(keys, sizes)] * 2, [Transfer.all_reduce(keys, ranks)] * 2
        return there, there + sums
