"""TransformerEngine's context parallel: ``DotProductAttention`` with a ``cp_group``, by p2p.

    out        blocks of K and V go round, merged by log-sum-exp         2 f K sent
    dQ, dK, dV the blocks once more, from where they are, and gradients  2 f K and 2 f K

f = (N - 1) / N, K the bytes of all keys. Under a mask shards are head and tail, as spbench's
zigzag; without one they have halves too. Written from its source (2.20.2), and not run on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, final

import torch
from torch import Tensor
from torch import distributed as dist

from spbench.vendors.vendor import Call, HeadTailPlan, Vendor, VendorPlan, sent_by_each
from spbench.workload.sharding import Sizes
from spbench.workload.traffic import Traffic
from spbench.workload.workload import Workload


@cache
def _layer(heads: int, keys: int, size: int, call: Call, on_gpu: bool) -> Any:
    from transformer_engine.pytorch import DotProductAttention

    mask = "causal" if call.causal else "no_mask"
    how = {"num_gqa_groups": keys, "qkv_format": "bshd", "attn_mask_type": mask}
    layer = DotProductAttention(heads, size, **how)
    ranks, stream = (
        dist.get_process_group_ranks(call.group),
        torch.cuda.Stream() if on_gpu else None,
    )
    layer.set_context_parallel_group(call.group, ranks, stream, "p2p")
    return layer


@final
@dataclass(frozen=True, kw_only=True)
class TransformerEngineCP(Vendor):
    """Its attention, with the kernel that it chooses."""

    plan: ClassVar[type[VendorPlan]] = HeadTailPlan
    package: ClassVar[str] = "transformer-engine"
    command: ClassVar[str] = "pip install 'transformer-engine[pytorch]'"
    needs_gpu: ClassVar[bool] = True
    halves: ClassVar[bool] = True
    dtypes: ClassVar[tuple[str, ...]] = ("bfloat16", "float16")

    def exchange(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        out: Tensor = _layer(q.shape[2], k.shape[2], q.shape[3], call, q.is_cuda)(q, k, v)
        return out.unflatten(2, q.shape[2:])  # it joins heads

    def sent(self, workload: Workload, sizes: Sizes) -> Traffic:
        ranks, both = len(sizes), 2 * workload.key_bytes
        hops = sent_by_each("p2p", (ranks - 1) * both, ranks)
        return [hops], [hops, hops]
