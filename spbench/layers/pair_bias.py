"""A bias of scores, computed from a side input that is sharded like the activation.

Each rank projects its own rows of the pair tensor to one bias for each head, (B, S/N, S, Z):
to attend a whole axis takes the other ranks' rows too. An account of activations alone
leaves that all-gather out.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from spbench.comm.collectives import Collectives
from spbench.layers.attention import Scores
from spbench.layers.heads import share_groups
from spbench.workload.block import Attention, Sublayer
from spbench.workload.sharding import Shard
from spbench.workload.traffic import Transfer
from spbench.workload.workload import Workload


@final
class PairBias(nn.Module):
    """This rank's rows of the pair tensor (B, S/N, S, C) -> its rows of bias (B, S/N, S, Z).

    There is no constant for each head: softmax would not see it, and its gradient is zero.
    """

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(heads, channels))

    def forward(self, pairs: Tensor) -> Tensor:
        return F.linear(pairs, self.weight)


def gathered(scores: Scores, comm: Collectives) -> Scores:
    """``scores`` with the whole bias, (B, S, S, Z), on every rank. Backward: a reduce-scatter."""
    if scores.bias is None or scores.bias_shard is None:
        return scores
    return replace(scores, bias=comm.all_gather(scores.bias, scores.bias_shard), bias_shard=None)


def gather_traffic(
    sublayer: Sublayer, workload: Workload, cut: Callable[[str], Shard]
) -> tuple[list[Transfer], list[Transfer]]:
    """Transfers of ``gathered`` in forward and in backward; ``cut``: how an axis is cut."""
    if not isinstance(sublayer, Attention) or not sublayer.pair_bias:
        return [], []
    (axis,) = sublayer.axes
    sizes = cut(axis).sizes
    whole_bytes = workload.bias_bytes(axis)
    return [Transfer.all_gather(whole_bytes, sizes)], [Transfer.reduce_scatter(whole_bytes, sizes)]


def taken(scores: Scores, group: int, comm: Collectives) -> Scores:
    """``scores`` with the bias of this rank's heads alone, whole groups of ``group`` queries.

    Every rank has that of all heads. Backward: an all-gather.
    """
    if scores.bias is None:
        return scores
    heads = share_groups(scores.bias.shape[3] // group, group, comm.size)
    own: Tensor = _Taken.apply(scores.bias, Shard.of_sizes(3, heads), comm)
    return replace(scores, bias=own, bias_shard=None)


def taken_traffic(sublayer: Sublayer, workload: Workload, ranks: int) -> list[Transfer]:
    """Transfers of ``taken`` in backward."""
    if not isinstance(sublayer, Attention) or not sublayer.pair_bias:
        return []
    heads = share_groups(workload.key_heads, workload.heads // workload.key_heads, ranks)
    return [Transfer.all_gather(workload.bias_bytes(*sublayer.axes), heads)]


class _Taken(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, bias: Tensor, heads: Shard, comm: Collectives) -> Tensor:
        ctx.how = heads, comm
        return comm.take(bias, heads).clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        heads, comm = ctx.how
        return comm.start_all_gather(grad, heads).wait(), None, None
