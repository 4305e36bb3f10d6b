"""diffusers' ring as its adapters call it, with a kernel of log-sum-exps, and what it sends.

Its entry point is private: what dispatches the attention of its models to context parallel. It
takes the operations of a block: torch's here, as its own for CPUs give no log-sum-exp.
"""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from spbench.layers.kernels import gradients_of, with_lse
from spbench.vendors.package import patched
from spbench.vendors.unified import RingAcross
from spbench.vendors.vendor import Call, sent_by_each
from spbench.workload.traffic import Traffic


@cache
def config_of(ulysses: int, ring: int, device: str) -> Any:
    """``ParallelConfig`` of groups of neighbours, made of all ranks."""
    from diffusers.models._modeling_parallel import ContextParallelConfig, ParallelConfig

    own = ContextParallelConfig(ulysses_degree=ulysses, ring_degree=ring)
    world = dist.get_world_size()
    shape, names = (world // (ulysses * ring), *own.mesh_shape), ("data", *own.mesh_dim_names)
    mesh = init_device_mesh(device, shape, mesh_dim_names=names)
    config = ParallelConfig(context_parallel_config=own)
    config.setup(dist.get_rank(), world, torch.device(device), mesh=mesh)
    return config


def forward_of_block(ctx: Any, q: Tensor, k: Tensor, v: Tensor, *_: Any, **how: Any) -> Any:
    """A block's result (b, S, Z, D) and log-sum-exps (b, S, Z)."""
    if how["_save_ctx"]:
        ctx.save_for_backward(q, k, v)
    out, lse = with_lse(*(x.transpose(1, 2) for x in (q, k, v)), causal=False)
    return out.transpose(1, 2), lse.transpose(1, 2)


def backward_of_block(ctx: Any, grad: Tensor, **given: Tensor) -> Any:
    """dQ, dK and dV of a block, from the result and the log-sum-exp of all."""
    names = "query", "key", "value", "out", "lse"
    grad, q, k, v, out, lse = (x.transpose(1, 2) for x in (grad, *map(given.__getitem__, names)))
    return tuple(x.transpose(1, 2) for x in gradients_of(grad, q, k, v, out, lse, causal=False))


def patched_ring() -> Any:
    """Its ring with gradients of a block that go where the block goes next, one rank back."""
    there, back = "list(range(1, world_size)) + [0]", "[world_size - 1, *range(world_size - 1)]"
    module = "diffusers.models.attention_dispatch"
    names = (
        "TemplatedRingAttention",
        "_templated_unified_attention",
        "_templated_context_parallel_attention",
    )
    return patched(module, names, ((there, back),))._templated_context_parallel_attention


@dataclass(frozen=True, kw_only=True)
class OfDiffusers(RingAcross, ABC):
    """Its ring, or its ring across neighbours, around torch's kernel of a block."""

    forms: ClassVar[tuple[str, ...]] = ("patched",)
    package: ClassVar[str] = "diffusers"
    is_causal_too: ClassVar[bool] = False
    groups_heads: ClassVar[bool] = False
    dtypes: ClassVar[tuple[str, ...]] = ("float32", "bfloat16", "float16")
    patched: bool = False

    def exchange(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        from diffusers.models import attention_dispatch

        stock = attention_dispatch._templated_context_parallel_attention
        ring = call.group.size() // self.neighbours
        out: Tensor = (patched_ring() if self.patched else stock)(
            *(q, k, v),
            forward_op=forward_of_block,
            backward_op=backward_of_block,
            _parallel_config=config_of(self.neighbours, ring, q.device.type),
        )
        return out

    def ring_sent(self, keys: int, wide: int, ranks: int, groups: int) -> Traffic:
        # All K and V by one gather, and once more; gradients by N permutations of a block, of
        # which the last takes it home.
        gather = sent_by_each("all_gather", (groups - 1) * keys, ranks)
        return [gather], [gather, sent_by_each("all_to_all", groups * wide * keys, ranks)]
