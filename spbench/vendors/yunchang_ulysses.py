"""yunchang's own Ulysses: ``yunchang.UlyssesAttention``.

    q, k, v   (b, S/N, Z, D)   --an all-to-all each-->   (b, S, Z/N, D)
    out       (b, S, Z/N, D)   --another-->              (b, S/N, Z, D)

Its kernels are flash_attn's, or torch's where that is not installed. ``torch`` names its kernel
``TORCH_FLASH``, of which no type is an attention alone (0.6.4): each is a ring over *all* ranks,
inside Ulysses, and has no backward.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from spbench.vendors.vendor import Call, Vendor, four_all_to_alls
from spbench.vendors.yunchang_layers import ulysses_layer
from spbench.workload.sharding import Sizes
from spbench.workload.traffic import Traffic
from spbench.workload.workload import Workload


@final
@dataclass(frozen=True, kw_only=True)
class YunchangUlysses(Vendor):
    """Its layer around its default kernel."""

    package: ClassVar[str] = "yunchang"
    flash: ClassVar[bool] = True
    forms: ClassVar[tuple[str, ...]] = ("torch",)
    splits_heads: ClassVar[bool] = True
    torch: bool = False

    def misfit(self, workload: Workload) -> str | None:
        backward = "its kernels of torch have no backward; set mode=forward"
        return super().misfit(workload) or (
            backward if self.torch and workload.mode == "train" else None
        )

    def exchange(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        out: Tensor = ulysses_layer(call.group, self.torch)(q, k, v, causal=call.causal)
        return out

    def sent(self, workload: Workload, sizes: Sizes) -> Traffic:
        return four_all_to_alls(workload, sizes)
