"""Groups of neighbours that cut the weights, and another strategy that attends across the groups.

The activation stays cut over all ranks. A group has its part of the sequence, heads and columns
shared out; ranks with the same heads attend across groups as if there were no others.

    {"ulysses": 2, "tp": 4}       groups 0 1 2 3 and 4 5 6 7 cut the weights; 0 4, 1 5, ... attend
"""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from typing import Any, ClassVar, cast, final

import torch
from torch import Tensor, nn

from spbench.comm.collectives import Collectives
from spbench.layers.attention import Scores, attend_whole
from spbench.layers.heads import bias_of_groups, bias_traffic_by_groups, traffic_across, with_heads
from spbench.layers.linear import ColumnCut, LinearSpec, RowCut, cut_norm_sums
from spbench.layers.memory_order import in_memory_order
from spbench.strategies import refusals
from spbench.strategies.base import Strategy
from spbench.strategies.fixed_axis import AUTO, FixedAxis
from spbench.strategies.registry import EXCHANGES, load
from spbench.workload.block import Attention, Sublayer
from spbench.workload.mesh import Members, Mesh
from spbench.workload.sharding import Shard, Sizes, shard_sizes
from spbench.workload.traffic import Traffic, Transfer, along, streams
from spbench.workload.workload import Workload

TP = "tp"  # the axis of a mesh whose groups cut weights: its last


@dataclass(frozen=True, kw_only=True)
class TensorGroups(FixedAxis, ABC):
    """``tp`` neighbours cut the weights, by default all ranks; another strategy goes ``across``."""

    cuts_weights: ClassVar[bool] = True
    tp: str = AUTO
    across: str = EXCHANGES[0]
    rows: str = AUTO

    @cached_property
    def other(self) -> FixedAxis:
        """The strategy across groups."""
        rows = f":rows={self.rows}" if self.rows != AUTO else ""
        return cast("FixedAxis", load(f"{self.across}:shard-axis={self.shard_axis}{rows}"))

    def misfit(self, workload: Workload) -> str | None:
        unfit = refusals.across_misfit(self.across, EXCHANGES) or refusals.size_misfit(tp=self.tp)
        if unfit is None and self.tp == AUTO and self.across != EXCHANGES[0]:
            return f"across={self.across} needs groups to go across; write tp=2 beside it"
        return unfit or self.other.misfit(workload)

    def why_not(self, workload: Workload, ranks: int) -> str | None:
        if self.tp == AUTO:
            return refusals.cut_why_not(workload, ranks) or super().why_not(workload, ranks)
        unfit = refusals.tp_why_not(workload, int(self.tp))
        unfit = unfit or refusals.groups_why_not(ranks, tp=self.tp)
        unfit = unfit or self._outside(self.other.why_not(*self._part(workload, ranks)))
        return unfit or super().why_not(workload, ranks)

    def why_not_along(self, axis: str, workload: Workload, ranks: int) -> str | None:
        unfit = super().why_not_along(axis, workload, ranks)
        if unfit is not None or self.tp == AUTO:
            return unfit
        apart = self.other.why_not_along(axis, *self._part(workload, ranks))
        return refusals.grouped_why_not(axis, workload) or self._outside(apart)

    def _outside(self, why_not: str | None) -> str | None:
        """What the strategy across groups says, for which a group is a rank."""
        return why_not and f"with each group of tp={self.tp} as one rank, {why_not}"

    def _part(self, workload: Workload, ranks: int) -> tuple[Workload, int]:
        """The heads of the rank of a group that has the fewest, and the number of groups."""
        fewest = workload.key_heads // int(self.tp)
        heads = fewest * (workload.heads // workload.key_heads)
        return with_heads(workload, heads, fewest), ranks // int(self.tp)

    def others(self, workload: Workload, ranks: int) -> list[tuple[Strategy, Workload, int]]:
        return [] if self.tp == AUTO else [(self.other, *self._part(workload, ranks))]

    def _beside(self, workload: Workload, ranks: int) -> Strategy:
        """The strategy across groups, with what it chooses for that rank."""
        return self.other.settled(*self._part(workload, ranks))

    def settled(self, workload: Workload, ranks: int) -> TensorGroups:
        if self.tp == AUTO or self.rows != AUTO:
            return self
        return replace(self, rows=self.other.settled_rows(*self._part(workload, ranks)))

    def mesh(self, workload: Workload, ranks: int) -> dict[str, int]:
        if self.tp == AUTO:
            return dict(super().mesh(workload, ranks))
        across, size = self.other.mesh(*self._part(workload, ranks)), int(self.tp)
        return {**(across if len(across) > 1 else {self.across: ranks // size}), TP: size}

    def has_own_queries(self, workload: Workload, ranks: int) -> bool:
        return self.tp != AUTO and self.other.has_own_queries(*self._part(workload, ranks))

    def shard(self, workload: Workload, axis: str, ranks: int) -> Shard:
        if self.tp == AUTO:
            return super().shard(workload, axis, ranks)
        size = int(self.tp)
        return self._beside(workload, ranks).shard(workload, axis, ranks // size).split(size)

    def text_shard(self, workload: Workload, ranks: int) -> Shard:
        if self.tp == AUTO:
            return super().text_shard(workload, ranks)
        size = int(self.tp)
        return self._beside(workload, ranks).text_shard(workload, ranks // size).split(size)

    def inside(self, shard: Shard) -> Shard | None:
        """Every rank of a group has all of the group's positions."""
        if self.tp == AUTO:
            return None
        groups = [rank // int(self.tp) for rank in range(len(shard.runs))]
        return shard.joined(int(self.tp)).among(groups)

    def notes(self, workload: Workload, ranks: int) -> str:
        if self.tp == AUTO:
            return super().notes(workload, ranks)
        (axis,) = set(self.layout(workload, ranks))
        said = replace(self.other, shard_axis=axis).notes(*self._part(workload, ranks))
        return f"of groups {said}" if said else ""

    def group(self, comm: Collectives, shard: Shard) -> tuple[Collectives, Shard]:
        """The collectives of a rank's group, and how what the group holds is cut."""
        if self.tp == AUTO:
            return comm, shard
        return comm.along(TP), shard.among(comm.mesh.members(comm.rank, TP))

    def traffic_across(
        self, sublayer: Sublayer, workload: Workload, axis: str, mesh: Mesh
    ) -> Traffic:
        """Transfers of an attention along ``axis`` across the groups of ``mesh``."""
        if not isinstance(sublayer, Attention) or axis not in sublayer.attended:
            return [], []
        groups, keys = mesh.size // int(self.tp), shard_sizes(workload.key_heads, int(self.tp))
        shares = [(n * (workload.heads // workload.key_heads), n) for n in keys]
        beside = self._beside(workload, mesh.size)
        across = partial(beside.sublayer_traffic, sublayer, axis=axis, ranks=groups)
        return traffic_across(workload, mesh, shares.__getitem__, across)


# Megatron tensor parallelism with sequence parallelism (Korthikanti et al., MLSys 2023).
#
# Weights are cut by heads and columns; between sublayers the activation is sharded along one
# axis. Every projection in gathers it, every projection out scatters the sum of its parts.
#
#     (B, T/N, S, H)  --all-gather-->  (B, T, S, H)  x column-cut  ->  (B, T, S, 3, Z/N, D)
#     attention of Z/N heads, whole axes, local
#     (B, T, S, Z/N, D)  x row-cut  ->  partial (B, T, S, H)  --reduce-scatter-->  (B, T/N, S, H)
#
# Each collective sends f M: 2 forward, 3 backward, where the saved shard is gathered once more
# (not with ``keep_input``), behind the input-gradient product; the scatter hides behind the other.
# In groups of ``tp`` ranks these are the group's, of its part of the sequence.


@final
@dataclass(frozen=True, kw_only=True)
class MegatronSP(TensorGroups):
    """With ``keep_input`` it saves the gathered input for backward: fewer bytes, more memory."""

    forms: ClassVar[tuple[str, ...]] = ("tp=2", "keep-input")
    keep_input: bool = False
    ends_in_transfer: ClassVar[bool] = True

    def environment(self, capability: tuple[int, int]) -> dict[str, str]:
        # Up to Hopper the gather only so reaches the device before the product that hides it.
        return {"CUDA_DEVICE_MAX_CONNECTIONS": "1"} if capability < (10, 0) else {}

    def sublayer_traffic(
        self, sublayer: Sublayer, workload: Workload, axis: str, ranks: int
    ) -> Traffic:
        mesh = Mesh.of(self.mesh(workload, ranks))
        cuts = self.shard(workload, axis, ranks).sizes, self.text_shard(workload, ranks).sizes
        in_group = cache(partial(self._traffic_in_group, sublayer, workload, axis))
        if self.tp == AUTO:
            return in_group(*cuts)

        def held_in_group(members: Members) -> Traffic:
            return in_group(*(tuple(sizes[rank] for rank in members) for sizes in cuts))

        forward, backward = along(mesh.last, mesh.groups(mesh.last), held_in_group)
        there, back = self.traffic_across(sublayer, workload, axis, mesh)
        scatters = [each for each in forward if each.op == "reduce_scatter"]
        return [*forward[: -len(scatters)], *there, *scatters], back + backward

    def _traffic_in_group(
        self, sublayer: Sublayer, workload: Workload, axis: str, image: Sizes, text: Sizes
    ) -> Traffic:
        """Transfers of ranks that hold these positions of ``axis`` and of text."""
        through = streams(sublayer, workload, axis, image, text)
        gathers = [Transfer.all_gather(*each) for each in through]
        scatters = [Transfer.reduce_scatter(*each) for each in through]
        tokens = workload.tokens // workload.axes[axis] * sum(image) + sum(text)
        again, norm = (
            gathers * (not self.keep_input),
            cut_norm_sums(sublayer, workload, tokens, len(image)),
        )
        bias, back = bias_traffic_by_groups(sublayer, workload, len(image))
        return gathers + norm + bias + scatters, gathers + back + norm + again + scatters

    def linear_in(self, spec: LinearSpec, comm: Collectives) -> nn.Module:
        return ColumnCut(spec, comm, partial(self._times, comm=comm))

    def linear_out(self, spec: LinearSpec, comm: Collectives) -> nn.Module:
        return RowCut(spec, comm, partial(self._scattered, comm=comm))

    def _times(
        self, x: Tensor, matrix: Tensor, bias: Tensor, shard: Shard, comm: Collectives
    ) -> Tensor:
        group, held = self.group(comm, shard)
        return _GatherProduct.apply(x, matrix, bias, group, held, self.keep_input)

    def _scattered(self, parts: Tensor, shard: Shard, comm: Collectives) -> Tensor:
        group, held = self.group(comm, shard)
        return group.reduce_scatter(parts, held)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, scores: Scores, shard: Shard, comm: Collectives
    ) -> Tensor:
        if self.tp != AUTO:
            others = comm.along(*comm.mesh.without(TP))
            return self.other.attend(q, k, v, scores, shard.joined(int(self.tp)), others)
        return attend_whole(q, k, v, bias_of_groups(scores, q.shape[-2] // k.shape[-2], comm))


class _GatherProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: Tensor, bias: Tensor, *how: Any) -> Tensor:
        ctx.comm, ctx.shard, ctx.keep_input = comm, shard, keep_input = how
        gathered = comm.start_all_gather(x, shard).wait()
        ctx.save_for_backward(gathered if keep_input else x, matrix)
        return in_memory_order(lambda x: nn.functional.linear(x, matrix, bias), gathered)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        saved, matrix = ctx.saved_tensors
        gather = None if ctx.keep_input else ctx.comm.start_all_gather(saved, ctx.shard)
        grad = grad.movedim(ctx.shard.dim, 0).contiguous()  # as gather and scatter have it
        parts = (grad @ matrix).movedim(0, ctx.shard.dim)
        x = saved if gather is None else gather.wait()
        scatter = ctx.comm.start_reduce_scatter(parts, ctx.shard)
        rows, inputs = (each.flatten(0, -2) for each in (grad, x.movedim(ctx.shard.dim, 0)))
        return scatter.wait(), rows.t() @ inputs, rows.sum(0), None, None, None
