"""Strategies from outside with operators of their own, or of torch's.

Those that gather keys and values by one hand comm/ nothing, and predict nothing; results are right.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from spbench.comm.collectives import Collectives
from spbench.layers.attention import Scores
from spbench.strategies.fixed_axis import FixedAxis, FixedPlan
from spbench.strategies.ulysses import Ulysses, UlyssesPlan
from spbench.workload.block import Sublayer
from spbench.workload.sharding import Shard
from spbench.workload.traffic import Traffic
from spbench.workload.workload import Workload


@torch.library.custom_op("plug_in::whole", mutates_args=())
def whole(x: Tensor, dim: int, ranks: int) -> Tensor:
    """Even parts of all ranks, joined along ``dim``."""
    parts = [torch.empty_like(x) for _ in range(ranks)]
    dist.all_gather(parts, x.contiguous())
    return torch.cat(parts, dim)


@torch.library.custom_op("plug_in::outside_torch", mutates_args=())
def outside_torch(x: Tensor) -> Tensor:
    """The same numbers."""
    return torch.from_numpy(x.numpy().copy())


outside_torch.register_autograd(lambda ctx, grad: grad)


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    _, ctx.dim, ctx.ranks = inputs


def _sum(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    total = grad.contiguous()
    dist.all_reduce(total)
    return total.chunk(ctx.ranks, ctx.dim)[dist.get_rank()], None, None


whole.register_autograd(_sum, setup_context=_keep)


class GathersPlan(FixedPlan):
    """Keys and values are gathered past ``comm``."""

    def sublayer_traffic(self, sublayer: Sublayer, axis: str) -> Traffic:
        return [], []

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, scores: Scores, shard: Shard, comm: Collectives
    ) -> Tensor:
        if shard.dim in scores.dims and comm.size > 1:
            assert isinstance(self.strategy, Gathers)
            k, v = self.strategy.gathered(k, v, shard.dim, comm)
        return super().attend(q, k, v, scores, shard, comm)


@dataclass(frozen=True, kw_only=True)
class Gathers(FixedAxis):
    """One axis stays sharded, evenly."""

    plan = GathersPlan

    def why_not_along(self, axis: str, workload: Workload, ranks: int) -> str | None:
        if workload.axes[axis] % ranks:
            return f"{axis} does not divide by {ranks} ranks"
        return super().why_not_along(axis, workload, ranks)

    @abstractmethod
    def gathered(self, k: Tensor, v: Tensor, dim: int, comm: Collectives) -> tuple[Tensor, Tensor]:
        """Keys and values of all ranks."""


class ByOwnOperator(Gathers):
    def gathered(self, k: Tensor, v: Tensor, dim: int, comm: Collectives) -> tuple[Tensor, Tensor]:
        return whole(k, dim, comm.size), whole(v, dim, comm.size)


class ByTorchsOperator(Gathers):
    """By the operator of torch's own context parallelism."""

    def gathered(self, k: Tensor, v: Tensor, dim: int, comm: Collectives) -> tuple[Tensor, Tensor]:
        from torch.distributed.tensor.experimental import _context_parallel

        group: Any = comm.transport.group  # type: ignore[attr-defined]
        return _context_parallel.flex_cp_allgather(k, v, dim, group.group_name)


class OutsideTorchPlan(UlyssesPlan):
    """What it does to queries, nobody can look into."""

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, scores: Scores, shard: Shard, comm: Collectives
    ) -> Tensor:
        return super().attend(outside_torch(q), k, v, scores, shard, comm)


class OutsideTorch(Ulysses):
    plan = OutsideTorchPlan
