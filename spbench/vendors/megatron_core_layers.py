"""Megatron-core's linear layers, called with spbench's parameters: they hold no weights here."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.func import functional_call

from spbench.comm.collectives import Collectives
from spbench.comm.compiler import never_compiled
from spbench.vendors.package import group_of
from spbench.workload.sharding import Shard


@cache
def _layer(name: str, inputs: int, outputs: int, group: dist.ProcessGroup) -> Any:
    if dist.get_backend(group) == "gloo":  # its buffers are on the current GPU
        torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment,return-value]
    from megatron.core import ModelParallelConfig, parallel_state, tensor_parallel

    if parallel_state._GLOBAL_MEMORY_BUFFER is None:
        parallel_state._set_global_memory_buffer()
    unset = {"perform_initialization": False, "use_cpu_initialization": True}
    config = ModelParallelConfig(group.size(), sequence_parallel=True, **unset)
    whole = {"gather_output": False} if name.startswith("Column") else {"input_is_parallel": True}
    how: dict[str, Any] = {
        "config": config,
        "init_method": None,
        "bias": True,
        "skip_bias_add": False,
        **whole,
    }
    with torch.device("meta"):
        return getattr(tensor_parallel, name)(inputs, outputs, tp_group=group, **how)


def _called(layer: nn.Module, x: Tensor, dim: int, weight: Tensor, bias: Tensor) -> Tensor:
    """(..., in) through a layer that has positions outermost, here along ``dim``."""
    x = x.movedim(dim, 0)
    given = {"weight": weight, "bias": bias}, (x.flatten(1, -2).contiguous(),)
    out: Tensor = functional_call(layer, *given)[0]  # (positions, all other dims, out)
    return out.unflatten(1, x.shape[1:-1]).movedim(0, dim)


@never_compiled
def columns(x: Tensor, matrix: Tensor, bias: Tensor, shard: Shard, comm: Collectives) -> Tensor:
    """``ColumnParallelLinear`` with this rank's columns (columns, H): of (..., H), cut along the
    shard's dim, (..., columns), whole along it."""
    inputs, outputs = matrix.shape[1], matrix.shape[0] * comm.size
    layer = _layer("ColumnParallelLinear", inputs, outputs, group_of(comm))
    return _called(layer, x, shard.dim, matrix, bias)


@never_compiled
def rows(x: Tensor, weight: Tensor, bias: Tensor, shard: Shard, comm: Collectives) -> Tensor:
    """``RowParallelLinear`` with this rank's rows (H, *rows), its sum and its bias: of (..., *rows)
    whole along the shard's dim, (..., H) cut along it."""
    matrix = weight.flatten(1)
    inputs, outputs = matrix.shape[1] * comm.size, len(matrix)
    layer = _layer("RowParallelLinear", inputs, outputs, group_of(comm))
    return _called(layer, x.flatten(1 - weight.ndim), shard.dim, matrix, bias)
