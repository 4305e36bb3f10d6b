"""DeepSpeed's own Ulysses: ``deepspeed.sequence.layer.DistributedAttention``.

    q, k, v   (b, S/N, Z, D)   --an all-to-all each-->   (b, S, Z/N, D)
    out       (b, S, Z/N, D)   --another-->              (b, S/N, Z, D)

spbench's ``ulysses`` sends q, k and v in one. Of heads that do not divide, DeepSpeed asks its own
global groups for the rank, not the group that it is given: such cases are refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from typing import Any, ClassVar, final

from torch import Tensor
from torch import distributed as dist

from spbench.vendors.vendor import Call, Vendor, four_all_to_alls, plain
from spbench.workload.sharding import Sizes
from spbench.workload.traffic import Traffic
from spbench.workload.workload import Workload


@cache
def start(backend: str) -> None:
    """Its own communication, rank after rank: at its first use it compiles an extension."""
    from deepspeed import comm

    for rank in range(dist.get_world_size()):
        if rank == dist.get_rank():
            comm.init_distributed(backend, dist_init_required=False)
        dist.barrier()


@cache
def _layer(group: dist.ProcessGroup, causal: bool) -> Any:
    from deepspeed.sequence.layer import DistributedAttention

    start(dist.get_backend(group))
    return DistributedAttention(partial(plain, causal=causal), group, scatter_idx=2, gather_idx=1)


@final
@dataclass(frozen=True, kw_only=True)
class DeepSpeedUlysses(Vendor):
    """DeepSpeed's layer around torch's attention."""

    package: ClassVar[str] = "deepspeed"
    splits_heads: ClassVar[bool] = True

    def exchange(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        out: Tensor = _layer(call.group, call.causal)(q, k, v, 0)
        return out

    def sent(self, workload: Workload, sizes: Sizes) -> Traffic:
        return four_all_to_alls(workload, sizes)
