"""diffusers' own Ulysses: its context parallel of attention processors, ``ulysses_degree=N``.

    q, k, v   (b, S/N, Z, D)   --an all-to-all each-->   (b, S, Z/N, D)
    out       (b, S, Z/N, D)   --another-->              (b, S/N, Z, D)

Its entry point is private: the dispatcher of attention that its models call.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, final

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from spbench.vendors.vendor import Call, Vendor, four_all_to_alls
from spbench.workload.sharding import Sizes
from spbench.workload.traffic import Traffic
from spbench.workload.workload import Workload


@cache
def _config(ranks: int, device: str) -> Any:
    """Its description of groups of neighbours, made of all ranks."""
    from diffusers.models._modeling_parallel import ContextParallelConfig, ParallelConfig

    own, world = ContextParallelConfig(ulysses_degree=ranks), dist.get_world_size()
    shape, names = (world // ranks, *own.mesh_shape), ("data", *own.mesh_dim_names)
    mesh = init_device_mesh(device, shape, mesh_dim_names=names)
    config = ParallelConfig(context_parallel_config=own)
    config.setup(dist.get_rank(), world, torch.device(device), mesh=mesh)
    return config


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

        config = _config(call.group.size(), q.device.type)
        out: Tensor = _native_attention(q, k, v, _parallel_config=config)
        return out

    def sent(self, workload: Workload, sizes: Sizes) -> Traffic:
        return four_all_to_alls(workload, sizes)
