"""DeepSpeed's Ulysses for models of Hugging Face: ``UlyssesSPAttentionHF`` (Bekman et al., 2025).

    q, k, v        (b, Z, S/N, D)   --an all-to-all each-->   (b, Z/N, S, D)
    out            (b, S, Z/N D)    --another-->              (b, S/N, Z D)
    position_ids   (b, S/N)         --an all-gather-->        (b, S)            at every call

Key heads fewer than ranks are repeated until each rank has one: keys then travel as N heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn
from torch import distributed as dist

from spbench.layers.kernels import kernel
from spbench.vendors.deepspeed_ulysses import start
from spbench.vendors.vendor import Call, Vendor, sent_by_each, switches
from spbench.workload.sharding import Sizes
from spbench.workload.traffic import Traffic
from spbench.workload.workload import Workload


@cache
def _layer(call: Call, keys: int, shape: torch.Size) -> Any:
    from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF

    def attention(_: nn.Module, q: Tensor, k: Tensor, v: Tensor, *__: Any, **___: Any) -> Any:
        return kernel(q, k, v, is_causal=call.causal).transpose(1, 2), None

    start(dist.get_backend(call.group))
    lengths = {"local_seq_length": shape[2], "global_seq_length": shape[2] * call.group.size()}
    how = attention, *shape[:2], shape[3], keys, 1, call.group
    return partial(UlyssesSPAttentionHF(*how, **lengths), nn.Module())


@final
@dataclass(frozen=True, kw_only=True)
class DeepSpeedALST(Vendor):
    """DeepSpeed's layer around torch's attention, with positions that it gathers and we ignore."""

    package: ClassVar[str] = "deepspeed"
    order: ClassVar[str] = "b z s d"
    splits_heads: ClassVar[bool] = True
    repeats_keys: ClassVar[bool] = True

    def exchange(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        positions = torch.arange(q.shape[2], device=q.device).expand(len(q), -1).contiguous()
        out, _ = _layer(call, k.shape[1], q.shape)(q, k, v, None, position_ids=positions)
        return out.unflatten(2, (q.shape[1], -1)).transpose(1, 2)

    def sent(self, workload: Workload, sizes: Sizes) -> Traffic:
        ranks = len(sizes)
        moved = switches(workload, ranks, ranks, max(1, ranks // workload.key_heads))
        positions = 8 * (ranks - 1) * workload.samples * workload.tokens  # of 64 bits
        return [sent_by_each("all_gather", positions, ranks), *moved], moved
