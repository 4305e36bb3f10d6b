"""ParaAttention's own Ulysses: ``para_attn.para_attn_interface.ulysses_attn_func``.

    q, k, v   (b, Z, S/N, D)   --an all-to-all each-->   (b, Z/N, S, D)
    out       (b, Z/N, S, D)   --another-->              (b, Z, S/N, D)

Its ring is for inference on CUDA alone, and not here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from spbench.layers.kernels import kernel
from spbench.vendors.vendor import Call, Vendor, four_all_to_alls
from spbench.workload.sharding import Sizes
from spbench.workload.traffic import Traffic
from spbench.workload.workload import Workload


@final
@dataclass(frozen=True, kw_only=True)
class ParaAttnUlysses(Vendor):
    """Its function around torch's attention."""

    package: ClassVar[str] = "para-attn"
    order: ClassVar[str] = "b z s d"
    splits_heads: ClassVar[bool] = True

    def exchange(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        from para_attn.para_attn_interface import ulysses_attn_func

        def attention(q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool, **_: object) -> Tensor:
            return kernel(q, k, v, is_causal=is_causal)  # which knows of fewer key heads

        how = {"is_causal": call.causal, "mesh": call.group, "attn_func": attention}
        out: Tensor = ulysses_attn_func(q, k, v, **how)
        return out

    def sent(self, workload: Workload, sizes: Sizes) -> Traffic:
        return four_all_to_alls(workload, sizes)
