"""Rings over flash_attn that several packages have from one another: how they are patched, and what
they send.

Gradients travel in float32, and of float32 inputs they are wrong as shipped: ``to(float32)`` of a
float32 buffer is the buffer, into which the next block writes; dQ is rounded to bfloat16 where
there is no mask. Patched, they copy, and round to the dtype of q. Under a mask they are zigzag.
"""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass
from typing import Any, ClassVar

from spbench.vendors.package import patched
from spbench.vendors.unified import RingAcross
from spbench.vendors.vendor import sent_by_each
from spbench.workload.traffic import Traffic

COPIES = (".to(torch.float32)", ".to(torch.float32, copy=True)")
KEEPS_DTYPE = ("dq.to(torch.bfloat16)", "dq.to(q.dtype)")


def patched_ring(folder: str, causal: bool) -> Any:
    """``ring_flash_attn_func`` of a package's ``folder``, or the zigzag one."""
    snake, camel = ("zigzag_", "ZigZag") if causal else ("", "")
    file = f"{snake}ring_flash_attn"
    names = f"{file}_backward", f"{camel}RingFlashAttnFunc", f"{file}_func"
    changes = (COPIES,) if causal else (COPIES, KEEPS_DTYPE)
    return getattr(patched(f"{folder}.{file}", names, changes), names[-1])


def ring_sent(keys: int, wide: int, ranks: int, groups: int) -> Traffic:
    """What ``RingAcross.ring_sent`` asks: K and V go N - 1 times on, their gradients N times, which
    is home; N = ``groups``."""
    blocks = sent_by_each("p2p", (groups - 1) * keys, ranks)
    return [blocks], [blocks, sent_by_each("p2p", groups * wide * keys, ranks)]


@dataclass(frozen=True, kw_only=True)
class OverFlash(RingAcross, ABC):
    """Such a ring; ``patched``: with gradients of float32 that are right."""

    forms: ClassVar[tuple[str, ...]] = ("patched",)
    flash: ClassVar[bool] = True
    wrong_in_float32: ClassVar[bool] = True
    dtypes: ClassVar[tuple[str, ...]] = ("float32", "bfloat16", "float16")
    patched: bool = False

    def ring_sent(self, keys: int, wide: int, ranks: int, groups: int) -> Traffic:
        return ring_sent(keys, wide, ranks, groups)
