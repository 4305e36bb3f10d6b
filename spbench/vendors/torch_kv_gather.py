"""torch's own gather of keys and values, as its context parallel under flex_attention does it.

    k, v   (b, Z, S/N, D)   --an all-gather each-->      (b, Z, S, D)
    dK, dV (b, Z, S, D)     --a reduce-scatter each-->   (b, Z, S/N, D)

What was gathered is kept for backward, as in spbench's ``kv-gather``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from spbench.layers.kernels import kernel
from spbench.vendors.vendor import Call, Vendor
from spbench.workload.sharding import Sizes
from spbench.workload.traffic import Traffic, Transfer
from spbench.workload.workload import Workload


@final
@dataclass(frozen=True, kw_only=True)
class TorchKVGather(Vendor):
    """``flex_cp_allgather`` of torch.distributed.tensor.experimental, then torch's attention."""

    package: ClassVar[str] = "torch"
    order: ClassVar[str] = "b z s d"
    is_causal_too: ClassVar[bool] = False  # a mask is flex_attention's, which must be compiled

    def exchange(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        from torch.distributed.tensor.experimental import _context_parallel

        keys, values = _context_parallel.flex_cp_allgather(k, v, 2, call.group.group_name)
        return kernel(q, keys, values, is_causal=False)

    def sent(self, workload: Workload, sizes: Sizes) -> Traffic:
        whole = workload.key_bytes
        gather, scatter = (Transfer.all_gather(whole, sizes), Transfer.reduce_scatter(whole, sizes))
        return [gather, gather], [scatter, scatter]
