"""Megatron tensor parallelism (Shoeybi et al., 2019): every rank holds the whole sequence.

Weights are cut by heads and columns; the activation, and norms and all else that works on it, are
repeated on every rank. A projection in is local; one out sums the ranks' parts.

    (B, T, S, H)  x column-cut  ->  (B, T, S, 3, Z/N, D)  ->  attention of Z/N heads
    (B, T, S, Z/N, D)  x row-cut  ->  partial (B, T, S, H)  --all-reduce-->  (B, T, S, H)

Each all-reduce sends 2 f M (section 3): one in forward, one in backward before a projection in,
where it hides behind the product that gives the weight's gradient. Backward of the sum is nothing:
every rank has the whole gradient of what all hold.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from spbench.comm.collectives import Collectives
from spbench.layers.attention import Scores, attend_whole
from spbench.layers.heads import taken, taken_traffic
from spbench.layers.linear import ColumnCut, LinearSpec, RowCut, cut_norm_sums
from spbench.layers.memory_order import in_memory_order
from spbench.strategies.base import Layout, Strategy
from spbench.strategies.refusals import cut_why_not
from spbench.workload.block import Sublayer
from spbench.workload.sharding import Shard
from spbench.workload.traffic import Traffic, Transfer, streams
from spbench.workload.workload import Workload


@final
@dataclass(frozen=True, kw_only=True)
class MegatronTP(Strategy):
    """The baseline of the RSA paper: no sequence parallelism at all."""

    cuts_weights: ClassVar[bool] = True
    holds_whole: ClassVar[bool] = True
    switches: ClassVar[bool] = False
    ends_in_transfer: ClassVar[bool] = True

    def environment(self, capability: tuple[int, int]) -> dict[str, str]:
        # Up to Hopper the sum only so reaches the device before the product that hides it.
        return {"CUDA_DEVICE_MAX_CONNECTIONS": "1"} if capability < (10, 0) else {}

    def why_not(self, workload: Workload, ranks: int) -> str | None:
        return cut_why_not(workload, ranks)

    def layout(self, workload: Workload, ranks: int) -> Layout:
        return (next(iter(workload.axes)),) * len(workload.stack)

    def mesh(self, workload: Workload, ranks: int) -> dict[str, int]:
        return {"tp": ranks}

    def shard(self, workload: Workload, axis: str, ranks: int) -> Shard:
        return Shard.even(workload.dim(axis), workload.axes[axis], 1).among([0] * ranks)

    def text_shard(self, workload: Workload, ranks: int) -> Shard:
        return Shard.even(1, workload.text, 1).among([0] * ranks)

    def inside(self, shard: Shard) -> Shard | None:
        return None

    def sublayer_traffic(
        self, sublayer: Sublayer, workload: Workload, axis: str, ranks: int
    ) -> Traffic:
        passing = streams(sublayer, workload, axis, (workload.axes[axis],), (workload.text,))
        sums = [Transfer.all_reduce(whole_bytes, ranks) for whole_bytes, _ in passing]
        norm = cut_norm_sums(sublayer, workload, workload.all_tokens, ranks)
        return norm + sums, taken_traffic(sublayer, workload, ranks) + norm + sums

    def linear_in(self, spec: LinearSpec, comm: Collectives) -> nn.Module:
        def times(x: Tensor, matrix: Tensor, bias: Tensor, _: Shard) -> Tensor:
            return in_memory_order(lambda x: _Product.apply(x, matrix, bias, comm), x)

        return ColumnCut(spec, comm, times)

    def linear_out(self, spec: LinearSpec, comm: Collectives) -> nn.Module:
        def summed(parts: Tensor, shard: Shard) -> Tensor:
            comm.all_reduce_(parts.detach().movedim(shard.dim, 0)).wait()
            return parts  # no one else reads them; their gradient is the sum's

        return RowCut(spec, comm, summed)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, scores: Scores, shard: Shard, comm: Collectives
    ) -> Tensor:
        return attend_whole(q, k, v, taken(scores, q.shape[-2] // k.shape[-2], comm))


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: Tensor, bias: Tensor, comm: Collectives) -> Tensor:
        ctx.save_for_backward(x, matrix)
        ctx.comm = comm
        return nn.functional.linear(x, matrix, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        x, matrix = ctx.saved_tensors
        total = grad @ matrix
        sum_of_parts = ctx.comm.all_reduce_(total)
        rows, inputs = grad.flatten(0, -2), x.flatten(0, -2)
        of_weight, of_bias = rows.t() @ inputs, rows.sum(0)
        sum_of_parts.wait()
        return total, of_weight, of_bias, None
