"""lucidrains' ring attention: ``ring_attention_pytorch.ring_flash_attention.ring_flash_attn``.

    out            blocks of (K, V) go round, merged by log-sum-exp    2 f K sent
    dQ, dK, dV     (K, V, dK, dV) go round, then (dK, dV) home         4 f K and 2 K / N

f = (N - 1) / N, K the bytes of all keys. As shipped (0.5.20) the way home is gone at every block,
round all ranks, and gives back what came and what went, which are taken for dK and dV. It is also
wrong under a mask where a rank has above 1,024 positions, and no multiple. ``patched`` mends all.
Each exchange ends in a barrier of all ranks; products are einsums. Of grouped heads query head i
has key head i mod Zkv there.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import ClassVar, final

from torch import Tensor

from spbench.vendors.package import patched
from spbench.vendors.vendor import Call, Vendor, sent_by_each
from spbench.workload.sharding import Sizes
from spbench.workload.traffic import Traffic, Transfer
from spbench.workload.workload import Workload

MODULE = "ring_attention_pytorch.ring_flash_attention"
NAMES = "RingFlashAttentionFunction", "ring_flash_attn"
MENDED = (
    ("\n            dkv = ring_pass(", "\n        dkv, _ = ring_pass("),
    ("+ 1, dkv)", "+ 1, dkv, ring_size = ring_size)"),
    ("\n            dk, dv = dkv", "\n        dk, dv = dkv"),
    ("per_machine_seq_size // bucket_size", "-(-per_machine_seq_size // bucket_size)"),
    ("ring_flash_attn_(", "RingFlashAttentionFunction.apply("),
)


@final
@dataclass(frozen=True, kw_only=True)
class RingAttentionPytorch(Vendor):
    """Its function, with contiguous shards also under a causal mask."""

    forms: ClassVar[tuple[str, ...]] = ("patched",)
    package: ClassVar[str] = "ring-attention-pytorch"
    dtypes: ClassVar[tuple[str, ...]] = ("float32",)
    patched: bool = False

    def exchange(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        stock = import_module(MODULE)
        own = patched(MODULE, NAMES, MENDED) if self.patched else stock
        how = {"causal": call.causal, "ring_reduce_col": True, "ring_size": call.group.size()}
        by_key = q.unflatten(2, (k.shape[2], -1))  # (b, S/N, Zkv, queries of a key head, D)
        out: Tensor = own.ring_flash_attn(by_key.transpose(2, 3).flatten(2, 3), k, v, **how)
        return out.unflatten(2, (-1, k.shape[2])).transpose(2, 3).flatten(2, 3)

    def sent(self, workload: Workload, sizes: Sizes) -> Traffic:
        ranks, both = len(sizes), 2 * workload.key_bytes
        home = sent_by_each("p2p", both, ranks)
        return [Transfer.ring(both, sizes)], [Transfer.ring(2 * both, sizes), home]
