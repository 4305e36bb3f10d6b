"""lucidrains' ring attention: ``ring_attention_pytorch.ring_flash_attention.ring_flash_attn``.

    out            blocks of (K, V) go round, merged by log-sum-exp    2 f K sent
    dQ, dK, dV     (K, V, dK, dV) go round, then (dK, dV) home         4 f K and 2 K / N

f = (N - 1) / N, K the bytes of all keys. As shipped (0.5.20) the way home stands inside the loop
over blocks, which sends 2 K and gives wrong dK and dV: the gate names these first. Each exchange
ends in a barrier of all ranks. Products are einsums, not a kernel, in buckets of 1,024 positions.
Of grouped heads query head i has key head i mod Zkv there: they are put in that order.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, final

from torch import Tensor

from spbench.vendors.vendor import Call, Vendor
from spbench.workload.sharding import Sizes
from spbench.workload.traffic import Traffic, Transfer
from spbench.workload.workload import Workload


@final
@dataclass(frozen=True, kw_only=True)
class RingAttentionPytorch(Vendor):
    """Its function, with contiguous shards also under a causal mask."""

    package: ClassVar[str] = "ring-attention-pytorch"
    dtypes: ClassVar[tuple[str, ...]] = ("float32",)

    def exchange(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        from ring_attention_pytorch.ring_flash_attention import ring_flash_attn

        how = {"causal": call.causal, "ring_reduce_col": True, "ring_size": call.group.size()}
        by_key = q.unflatten(2, (k.shape[2], -1))  # (b, S/N, Zkv, queries of a key head, D)
        out: Tensor = ring_flash_attn(by_key.transpose(2, 3).flatten(2, 3), k, v, **how)
        return out.unflatten(2, (-1, k.shape[2])).transpose(2, 3).flatten(2, 3)

    def sent(self, workload: Workload, sizes: Sizes) -> Traffic:
        ranks, both = len(sizes), 2 * workload.key_bytes
        home = Transfer(op="p2p", sent=(Fraction(both, ranks),) * ranks)
        return [Transfer.ring(both, sizes)], [Transfer.ring(2 * both, sizes), home]
