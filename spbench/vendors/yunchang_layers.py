"""yunchang's layers as its adapters call them: over flash_attn, or torch where that is missing."""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

from torch import Tensor
from torch import distributed as dist

from spbench.layers.kernels import with_lse
from spbench.vendors.flash_attn_stand_in import flash_attn_there
from spbench.vendors.flash_rings import OverFlash, patched_ring
from spbench.vendors.vendor import Call


@cache
def ulysses_layer(group: dist.ProcessGroup, is_torch: bool) -> Any:
    """``UlyssesAttention`` of a group, with its default kernel or what it calls torch's."""
    with flash_attn_there():
        from yunchang import UlyssesAttention
        from yunchang.kernels import AttnType, attention

    if dist.get_backend(group) == "gloo":  # its operation is a GPU's
        attention._scaled_dot_product_flash_attention = _flash_of_a_cpu
    return UlyssesAttention(group, attn_type=AttnType.TORCH_FLASH if is_torch else AttnType.FA)


def _flash_of_a_cpu(q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool, **_: Any) -> Any:
    return with_lse(q, k, v, causal=is_causal)


@cache
def usp_layer(neighbours: int, ring: int, causal: bool, is_patched: bool) -> Any:
    """``LongContextAttention``, whose groups are of all ranks, and variables of the process."""
    with flash_attn_there():
        from yunchang import LongContextAttention, set_seq_parallel_pg

    set_seq_parallel_pg(neighbours, ring, dist.get_rank(), dist.get_world_size())
    layer = LongContextAttention(ring_impl_type="zigzag" if causal else "basic")
    if is_patched:
        layer.ring_attn_fn = patched_ring("yunchang.ring", causal)
    return layer


@dataclass(frozen=True, kw_only=True)
class OfYunchang(OverFlash, ABC):
    """``LongContextAttention``, under a mask with the zigzag ring."""

    package: ClassVar[str] = "yunchang"

    def exchange(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        ring = call.group.size() // self.neighbours
        layer = usp_layer(self.neighbours, ring, call.causal, self.patched)
        out: Tensor = layer(q, k, v, causal=call.causal)
        return out
