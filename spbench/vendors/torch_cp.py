"""torch's own context parallel: the ring of torch.distributed.tensor.experimental.

    out, lse   merge of attention to (k_0, v_0), (k_1, v_1), ...       2 f K sent
    dK, dV     the blocks once more, and their gradients behind them   2 f K and 2 w K

f = (N - 1) / N, K the bytes of all keys. Blocks come by one all-gather, or with ``alltoall`` by one
permutation a block. Gradients of a block come home by N permutations, in float32: w = 4 bytes over
those of the dtype. Under a causal mask shards are head and tail, as spbench's zigzag.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, final

from torch import Tensor

from spbench.vendors.torch_ring_template import RingTemplate
from spbench.vendors.vendor import Call, HeadTailPlan, Vendor, VendorPlan, float32_times
from spbench.workload.sharding import Sizes
from spbench.workload.traffic import Traffic, Transfer
from spbench.workload.workload import Workload


@final
@dataclass(frozen=True, kw_only=True)
class TorchCP(Vendor):
    """With ``alltoall`` blocks of keys come one by one, else all in one all-gather."""

    forms: ClassVar[tuple[str, ...]] = ("alltoall",)
    plan: ClassVar[type[VendorPlan]] = HeadTailPlan
    package: ClassVar[str] = "torch"
    order: ClassVar[str] = "b z s d"
    dtypes: ClassVar[tuple[str, ...]] = ("float32", "bfloat16", "float16")  # sums are float32's
    alltoall: bool = False

    def exchange(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        return RingTemplate.apply(q, k, v, call, "alltoall" if self.alltoall else "allgather")

    def sent(self, workload: Workload, sizes: Sizes) -> Traffic:
        both = 2 * workload.key_bytes
        keys = Transfer.all_gather(both, sizes)
        if self.alltoall:
            keys = Transfer(op="all_to_all", sent=keys.sent)
        # N hops of a block each, of which the last takes it home: N times a part of N.
        home = Fraction(both * float32_times(workload))
        return [keys], [keys, Transfer(op="all_to_all", sent=(home,) * len(sizes))]
