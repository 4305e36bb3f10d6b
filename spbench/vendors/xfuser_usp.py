"""xDiT's own USP: ``xfuser.core.long_ctx_attention.xFuserLongContextAttention``.

    q, k, v   (b, S/N, Z, D)     --an all-to-all each-->   (b, U S/N, Z/U, D)
    out       blocks of K and V go round R = N / U groups   2 (R - 1) K / N sent
    dK, dV    the blocks once more, and their gradients     2 (R - 1) K / N and 2 R w K / N

K the bytes of all keys, w = 4 bytes over those of the dtype. Its layer is yunchang's with a ring of
its own, which has yunchang's backward, and without CUDA it has none. Written from its source
(0.7.0), and not run on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, final

from torch import Tensor
from torch import distributed as dist

from spbench.vendors.flash_rings import ring_sent
from spbench.vendors.unified import Unified
from spbench.vendors.vendor import Call
from spbench.workload.traffic import Traffic


@cache
def _layer(neighbours: int, ring: int) -> Any:
    from xfuser.core.long_ctx_attention import xFuserLongContextAttention
    from yunchang import set_seq_parallel_pg

    set_seq_parallel_pg(neighbours, ring, dist.get_rank(), dist.get_world_size())
    return xFuserLongContextAttention()


@final
@dataclass(frozen=True, kw_only=True)
class XFuserUSP(Unified):
    """Its layer, with flash_attn."""

    package: ClassVar[str] = "xfuser"
    command: ClassVar[str] = "pip install xfuser yunchang flash-attn"
    needs: ClassVar[tuple[str, ...]] = ("yunchang", "flash-attn")
    needs_gpu: ClassVar[bool] = True
    is_causal_too: ClassVar[bool] = False  # its ring has contiguous shards alone
    dtypes: ClassVar[tuple[str, ...]] = ("bfloat16", "float16")

    def exchange(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        ring = call.group.size() // self.neighbours
        out: Tensor = _layer(self.neighbours, ring)(None, q, k, v)
        return out

    def ring_sent(self, keys: int, wide: int, ranks: int, groups: int) -> Traffic:
        return ring_sent(keys, wide, ranks, groups)
