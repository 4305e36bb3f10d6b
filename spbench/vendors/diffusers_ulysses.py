"""diffusers' own Ulysses: its context parallel of attention processors, ``ulysses_degree=N``.

    q, k, v   (b, S/N, Z, D)   --an all-to-all each-->   (b, S, Z/N, D)
    out       (b, S, Z/N, D)   --another-->              (b, S/N, Z, D)

Its entry point is private: the dispatcher of attention that its models call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from spbench.vendors.diffusers_rings import config_of
from spbench.vendors.vendor import Call, Vendor, four_all_to_alls
from spbench.workload.sharding import Sizes
from spbench.workload.traffic import Traffic
from spbench.workload.workload import Workload


@final
@dataclass(frozen=True, kw_only=True)
class DiffusersUlysses(Vendor):
    """Its native attention under its parallel configuration."""

    package: ClassVar[str] = "diffusers"
    splits_heads: ClassVar[bool] = True
    is_causal_too: ClassVar[bool] = False
    groups_heads: ClassVar[bool] = False

    def exchange(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        from diffusers.models.attention_dispatch import _native_attention

        config = config_of(call.group.size(), 1, q.device.type)
        out: Tensor = _native_attention(q, k, v, _parallel_config=config)
        return out

    def sent(self, workload: Workload, sizes: Sizes) -> Traffic:
        return four_all_to_alls(workload, sizes)
