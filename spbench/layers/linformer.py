"""Attention to keys and values projected to a short sequence (Linformer), over a sharded axis.

Each rank projects the part of the sequence that it holds. The sum over the ranks is short,
P keys instead of S, and whole on each of them; every query then attends to all of it.
"""

import torch
from torch import Tensor

from spbench.comm.collectives import Collectives
from spbench.layers.attention import Folding, Scores, project
from spbench.layers.kernels import kernel
from spbench.workload.block import Attention
from spbench.workload.sharding import Shard
from spbench.workload.traffic import Traffic, Transfer
from spbench.workload.workload import Workload


def attend_projected(
    q: Tensor, k: Tensor, v: Tensor, scores: Scores, shard: Shard, comm: Collectives
) -> Tensor:
    """(B, *axes, Z, D) cut along an attended dim. Forward and backward: one all-reduce."""
    assert scores.projection is not None, "an attention without projection has nothing to sum"
    mine = comm.take(scores.projection, shard.along(2 + scores.dims.index(shard.dim)))
    folding = Folding.of(q.shape, scores.dims)
    partial = project(folding.fold(k), folding.fold(v), mine)
    short_k, short_v = comm.all_reduce(torch.stack(partial))
    return folding.unfold(kernel(folding.fold(q), short_k, short_v))


def projected_traffic(attention: Attention, workload: Workload, ranks: int) -> Traffic:
    """Transfers of ``attend_projected`` in forward and in backward."""
    assert attention.projection, "an attention without projection has nothing to sum"
    short = 2 * workload.key_bytes // workload.length(attention) * attention.projection
    return [Transfer.all_reduce(short, ranks)], [Transfer.all_reduce(short, ranks)]
