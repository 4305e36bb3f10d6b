"""Megatron tensor parallelism (Shoeybi et al., 2019): every rank holds the whole sequence.

Weights are cut by heads and columns; the activation, and norms and all else that works on it, are
repeated on every rank. A projection in is local; one out sums the ranks' parts.

    (B, T, S, H)  x column-cut  ->  (B, T, S, 3, Z/N, D)  ->  attention of Z/N heads
    (B, T, S, Z/N, D)  x row-cut  ->  partial (B, T, S, H)  --all-reduce-->  (B, T, S, H)

Each all-reduce sends 2 f M (section 3): one in forward, one in backward before a projection in,
where it hides behind the product that gives the weight's gradient. Backward of the sum is nothing:
every rank has the whole gradient of what all hold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from spbench.comm.collectives import Collectives
from spbench.comm.compiler import applied, never_compiled
from spbench.layers.attention import Scores, attend_whole
from spbench.layers.heads import matched_keys, taken, taken_traffic
from spbench.layers.linear import (
    ColumnCut,
    LinearSpec,
    RowCut,
    copies_traffic,
    cut_norm_sums,
    product,
)
from spbench.layers.memory_order import in_memory_order, put_outermost
from spbench.strategies.base import Plan, Strategy
from spbench.strategies.refusals import cut_why_not
from spbench.workload.block import Sublayer
from spbench.workload.mesh import Mesh
from spbench.workload.sharding import Shard, Sizes
from spbench.workload.strands import Between
from spbench.workload.traffic import Traffic, Transfer, streams
from spbench.workload.workload import Workload


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class TensorPlan(Plan):
    """Every rank holds all positions; sums around each sublayer."""

    cuts_weights: bool = True
    holds_whole: bool = True
    ends_in_transfer: bool = True

    @cached_property
    def mesh(self) -> Mesh:
        return Mesh.of({"tp": self.ranks})

    def shard(self, axis: str) -> Shard:
        return _held_by_all(self.workload.dim(axis), self.workload.axes[axis], self.ranks)

    @cached_property
    def text(self) -> Shard:
        return _held_by_all(1, self.workload.text, self.ranks)

    def inside(self, shard: Shard) -> Shard | None:
        return None

    def sublayer_traffic(self, sublayer: Sublayer, axis: str) -> Traffic:
        work = self.workload
        passing = streams(sublayer, work, axis, (work.axes[axis],), (work.text,))
        sums = [Transfer.all_reduce(whole_bytes, self.ranks) for whole_bytes, _ in passing]
        norm = cut_norm_sums(sublayer, work, work.all_tokens, self.ranks)
        copies = copies_traffic(sublayer, work, self.ranks)
        return norm + sums, taken_traffic(sublayer, work, self.ranks) + norm + sums + copies

    def traffic_between(self, one: Between, queries: Sizes, keys: Sizes) -> Traffic:
        asking, asked = (
            Transfer.all_reduce(side.activation_bytes, self.ranks)
            for side in (one.asking, one.asked)
        )
        return [asking], [asking, asked]  # behind the projection out; before those in

    def sent_by_attend(self, sublayer: Sublayer, axis: str) -> list[Transfer]:
        return []  # a rank takes the bias of its heads from what it holds

    def linear_in(self, spec: LinearSpec, comm: Collectives) -> nn.Module:
        def times(x: Tensor, matrix: Tensor, bias: Tensor, _: Shard) -> Tensor:
            return in_memory_order(lambda x: applied(_Product, x, matrix, bias, comm), x)

        return ColumnCut(spec, comm, times)

    def linear_out(self, spec: LinearSpec, comm: Collectives) -> nn.Module:
        @never_compiled  # it changes in place what a graph has given
        def summed(parts: Tensor, shard: Shard) -> Tensor:
            comm.all_reduce_(parts.detach().movedim(shard.dim, 0)).wait()
            return parts  # no one else reads them; their gradient is the sum's

        return RowCut(spec, comm, partial(_sum_of_rows, summed=summed))

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, scores: Scores, shard: Shard, comm: Collectives
    ) -> Tensor:
        keys_values = matched_keys(k, v, self.workload, comm)
        return attend_whole(q, *keys_values, taken(scores, self.workload, comm))


@final
@dataclass(frozen=True, kw_only=True)
class MegatronTP(Strategy):
    """The baseline of the RSA paper: no sequence parallelism at all."""

    def environment(self, capability: tuple[int, int]) -> dict[str, str]:
        # Up to Hopper the sum only so reaches the device before the product that hides it.
        return {"CUDA_DEVICE_MAX_CONNECTIONS": "1"} if capability < (10, 0) else {}

    @property
    def beside_axes(self) -> MegatronTP:
        return self

    def why_not(self, workload: Workload, ranks: int) -> str | None:
        return cut_why_not(workload, ranks)

    def on(self, workload: Workload, ranks: int) -> TensorPlan:
        layout = (next(iter(workload.axes)),) * len(workload.stack)
        return TensorPlan(strategy=self, workload=workload, ranks=ranks, layout=layout)


def _held_by_all(dim: int, length: int, ranks: int) -> Shard:
    """All positions on each of the ranks."""
    return Shard.even(dim, length, 1).among([0] * ranks)


def _sum_of_rows(
    x: Tensor, weight: Tensor, bias: Tensor, shard: Shard, summed: Callable[[Tensor, Shard], Tensor]
) -> Tensor:
    """The product with a rank's rows, then ``summed`` over the ranks; the bias is added once."""
    parts = product(put_outermost(x, shard.dim), weight, None, weight.ndim - bias.ndim)
    return summed(parts, shard) + bias


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
