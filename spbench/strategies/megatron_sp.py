"""Megatron tensor parallelism with sequence parallelism (Korthikanti et al., MLSys 2023).

Weights are cut by heads and columns; between sublayers the activation is sharded along one
axis. Every projection in gathers it, every projection out scatters the sum of its parts.

    (B, T/N, S, H)  --all-gather-->  (B, T, S, H)  x column-cut  ->  (B, T, S, 3, Z/N, D)
    attention of Z/N heads, whole axes, local
    (B, T, S, Z/N, D)  x row-cut  ->  partial (B, T, S, H)  --reduce-scatter-->  (B, T/N, S, H)

Each collective sends f M: 2 forward, 3 backward, where the saved shard is gathered once more
(not with ``keep_input``). Where a rank has many rows, products go by the ranks whose rows they are.
That of a rank's own hides the transfers: of a gather as the first, before those of parts that come;
of a scatter as the last, behind those whose parts leave as soon as they are there.

In groups of ``tp`` neighbours all this is the group's, of its part of the sequence, and another
strategy attends across groups: ranks with the same heads, as if there were no others.

    {"ulysses": 2, "tp": 4}       groups 0 1 2 3 and 4 5 6 7 cut the weights; 0 4, 1 5, ... attend
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from spbench.comm.collectives import Collectives
from spbench.comm.compiler import applied
from spbench.comm.pending import Gathering, Pending
from spbench.layers.attention import Scores, attend_whole
from spbench.layers.heads import (
    bias_of_groups,
    bias_traffic_by_groups,
    cut_heads,
    matched_keys,
    sinks_of_heads,
    traffic_across,
    with_heads,
)
from spbench.layers.linear import ColumnCut, LinearSpec, RowCut, copies_traffic, cut_norm_sums
from spbench.layers.memory_order import put_outermost
from spbench.strategies import refusals
from spbench.strategies.base import Hops, Plan, Strategy
from spbench.strategies.fixed_axis import AUTO, FixedAxis, FixedPlan
from spbench.strategies.registry import EXCHANGES, exchange
from spbench.workload.block import Attention, Sublayer
from spbench.workload.mesh import TP, Members, Mesh
from spbench.workload.sharding import Shard, Sizes, shard_sizes
from spbench.workload.strands import Between
from spbench.workload.traffic import Hop, Traffic, Transfer, along, streams
from spbench.workload.workload import Workload

ALONE = "sequence"
"""What the axis of a plan is called across groups, where it has but one."""
LEAST_ROWS = 1024
"""Positions of all samples that each rank has where products go by parts. A product reads its
weight anew for each part: of 512 rows two parts take 6 % longer than the whole, of 1,024 rows 3 %,
of 2,048 rows 1 % (one core of a CPU, weights of 768 x 384 to 1152 x 1728)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class CutPlan(Plan):
    """All ranks cut the weights: a gather before each product in, a scatter behind each out."""

    keep_input: bool = False
    """Whether what was gathered before a product in is kept for its backward."""
    cuts_weights: bool = True
    ends_in_transfer: bool = True

    def neighbours(self, comm: Collectives, shard: Shard) -> tuple[Collectives, Shard]:
        """The collectives of the ranks that cut a weight, and how what they hold is cut."""
        return comm, shard

    def inside(self, shard: Shard) -> Shard | None:
        return None

    def sublayer_traffic(self, sublayer: Sublayer, axis: str) -> Traffic:
        return self.traffic_inside(sublayer, axis, self.shard(axis).sizes, self.text.sizes)

    def traffic_inside(self, sublayer: Sublayer, axis: str, image: Sizes, text: Sizes) -> Traffic:
        """Transfers of ranks that cut a weight.

        Parameters
        ----------
        sublayer, axis
            What runs, and the sharded axis.
        image, text : Sizes
            Positions of ``axis`` and of text that each of the ranks holds.

        Returns
        -------
        Traffic
            In forward and in backward. Behind a projection out come no other transfers.
        """
        work = self.workload
        through = streams(sublayer, work, axis, image, text)
        gathers = [Transfer.all_gather(*stream) for stream in through]
        scatters = [Transfer.reduce_scatter(*stream) for stream in through]
        # Tokens of one position of the axis, times the positions that these ranks hold; and their
        # text.
        tokens = work.tokens // work.axes[axis] * sum(image) + sum(text)
        norm = cut_norm_sums(sublayer, work, tokens, len(image))
        again = [] if self.keep_input else gathers
        bias, back = bias_traffic_by_groups(sublayer, work, len(image))
        copies = copies_traffic(sublayer, work, len(image))
        return gathers + norm + bias + scatters, gathers + back + norm + again + scatters + copies

    def traffic_between(self, one: Between, queries: Sizes, keys: Sizes) -> Traffic:
        through = (one.asking.activation_bytes, queries), (one.asked.activation_bytes, keys)
        gathers = [Transfer.all_gather(*stream) for stream in through]
        scatters = [Transfer.reduce_scatter(*stream) for stream in through]
        again = [] if self.keep_input else gathers
        # Both strands come in and one goes out; of backward the gradient of that comes first.
        return [*gathers, scatters[0]], [gathers[0], *again, *scatters]

    def sent_by_attend(self, sublayer: Sublayer, axis: str) -> list[Transfer]:
        bias, _ = bias_traffic_by_groups(sublayer, self.workload, self.ranks)
        return bias

    @final
    def linear_in(self, spec: LinearSpec, comm: Collectives) -> nn.Module:
        return ColumnCut(spec, comm, partial(self._times, comm=comm))

    @final
    def linear_out(self, spec: LinearSpec, comm: Collectives) -> nn.Module:
        return RowCut(spec, comm, partial(self._sum_of_rows, comm=comm))

    def _times(
        self, x: Tensor, matrix: Tensor, bias: Tensor, shard: Shard, comm: Collectives
    ) -> Tensor:
        group, held = self.neighbours(comm, shard)
        return applied(_GatherProduct, x, matrix, bias, group, held, self.keep_input)

    def _sum_of_rows(
        self, x: Tensor, weight: Tensor, bias: Tensor, shard: Shard, comm: Collectives
    ) -> Tensor:
        group, held = self.neighbours(comm, shard)
        x, matrix = put_outermost(x.flatten(bias.ndim - weight.ndim), shard.dim), weight.flatten(1)
        # Where backward of the one hands what is under way to backward of the other.
        gathers: list[Gathering] = []
        partial_sums = applied(_PartialSums, x, matrix, gathers, held)
        factors = x.detach(), matrix.detach()
        return applied(_ProductScatter, partial_sums, bias, factors, gathers, held, group)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, scores: Scores, shard: Shard, comm: Collectives
    ) -> Tensor:
        keys_values = matched_keys(k, v, self.workload, comm)
        return attend_whole(q, *keys_values, bias_of_groups(scores, self.workload, comm))


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class FixedCutPlan(CutPlan, FixedPlan):
    """All ranks cut the weights, along one axis."""


@dataclass(frozen=True, kw_only=True, eq=False)
class GroupsPlan(CutPlan):
    """Groups of ``size`` neighbours cut the weights, and another plan goes across them."""

    size: int
    across: Plan
    """For the heads of the rank of a group that has the fewest; a group is one rank of it."""
    alone: str
    """What its axis is called beside the groups, where it has but one."""

    @cached_property
    def mesh(self) -> Mesh:
        return self.across.mesh.divided(TP, self.size, alone=self.alone)

    @property
    def chunks(self) -> int:
        return self.across.chunks

    def hops(self, before: str, after: str) -> Hops | None:
        """All ranks exchange their parts of what a group has."""
        if self.across.hops(before, after) is None:
            return None
        return Hop.between(self.shard(before), self.shard(after))

    def shard(self, axis: str) -> Shard:
        return self.across.shard(axis).split(self.size)

    @cached_property
    def text(self) -> Shard:
        return self.across.text.split(self.size)

    @property
    def notes(self) -> str:
        said = self.across.notes
        return f"of groups {said}" if said else ""

    def neighbours(self, comm: Collectives, shard: Shard) -> tuple[Collectives, Shard]:
        return comm.along(TP), shard.among(comm.mesh.members(comm.rank, TP))

    def inside(self, shard: Shard) -> Shard | None:
        """Every rank of a group has all of the group's positions."""
        # Ranks 0 1 2 3 of tp=2 hold what the groups 0 0 1 1 do.
        groups = [rank // self.size for rank in range(self.ranks)]
        return shard.joined(self.size).among(groups)

    def sublayer_traffic(self, sublayer: Sublayer, axis: str) -> Traffic:
        image, text = self.shard(axis).sizes, self.text.sizes
        in_group = cache(partial(self.traffic_inside, sublayer, axis))  # most groups hold as much

        def held_in_group(members: Members) -> Traffic:
            return in_group(*(tuple(sizes[rank] for rank in members) for sizes in (image, text)))

        forward, backward = along(TP, self.mesh.groups(TP), held_in_group)
        there, back = self._sent_across(
            sublayer, lambda plan: plan.sublayer_traffic(sublayer, axis)
        )
        # Attention lies between what the projection in sends, and the scatters of the one out.
        scatters = [transfer for transfer in forward if transfer.op == "reduce_scatter"]
        before = forward[: len(forward) - len(scatters)]
        return [*before, *there, *scatters], back + backward

    def sent_by_attend(self, sublayer: Sublayer, axis: str) -> list[Transfer]:
        sent, _ = self._sent_across(
            sublayer, lambda plan: (plan.sent_by_attend(sublayer, axis), [])
        )
        return sent

    def _sent_across(self, sublayer: Sublayer, sent: Callable[[Plan], Traffic]) -> Traffic:
        """Transfers of an attention across the groups; ``sent``: those of a plan for the heads of
        one rank."""
        if not isinstance(sublayer, Attention):
            return [], []
        queries = self.workload.heads // self.workload.key_heads  # of each key head
        keys = shard_sizes(self.workload.key_heads, self.size)
        # 12 heads with 6 key heads on 4 ranks: key heads 2 2 1 1, each with 2 queries.
        shares = [(n * queries, n) for n in keys]

        def across(part: Workload) -> Traffic:
            return sent(self.across.with_heads_of(part))

        return traffic_across(self.workload, self.mesh, shares.__getitem__, across)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, scores: Scores, shard: Shard, comm: Collectives
    ) -> Tensor:
        others = comm.along(*comm.mesh.without(TP))
        heads = cut_heads(self.workload.heads, self.workload.key_heads, self.size)
        scores = sinks_of_heads(scores, heads, comm.along(TP).rank)
        return self.across.attend(q, k, v, scores, shard.joined(self.size), others)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class FixedGroupsPlan(GroupsPlan, FixedPlan):
    """Groups, with one axis sharded across them."""

    across: FixedPlan

    @property
    def queries_stay(self) -> bool:
        return self.across.queries_stay


@final
@dataclass(frozen=True, kw_only=True)
class MegatronSP(FixedAxis):
    """``tp`` neighbours cut the weights, by default all ranks; another strategy goes ``across``.

    With ``keep_input`` it saves the gathered input for backward: fewer bytes, more memory.
    """

    forms: ClassVar[tuple[str, ...]] = ("tp=2", "keep-input")
    plan: ClassVar[type[FixedCutPlan]] = FixedCutPlan
    tp: str = AUTO
    across: str = EXCHANGES[0]
    rows: str = AUTO
    keep_input: bool = False

    def environment(self, capability: tuple[int, int]) -> dict[str, str]:
        # Up to Hopper the gather only so reaches the device before the product that hides it.
        return {"CUDA_DEVICE_MAX_CONNECTIONS": "1"} if capability < (10, 0) else {}

    @property
    def beside_axes(self) -> MegatronSP:
        return self.with_any_axis

    @property
    def other(self) -> FixedAxis:
        """The strategy across groups."""
        return exchange(self.across, shard_axis=self.shard_axis, rows=self.rows)

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
        unfit = unfit or self._outside(self.other.why_not(*self._across_groups(workload, ranks)))
        return unfit or super().why_not(workload, ranks)

    def why_not_along(self, axis: str, workload: Workload, ranks: int) -> str | None:
        unfit = super().why_not_along(axis, workload, ranks)
        if unfit is not None or self.tp == AUTO:
            return unfit
        apart = self.other.why_not_along(axis, *self._across_groups(workload, ranks))
        return refusals.grouped_why_not(axis, workload) or self._outside(apart)

    def _outside(self, why_not: str | None) -> str | None:
        """What the strategy across groups says, for which a group is a rank."""
        return why_not and f"with each group of tp={self.tp} as one rank, {why_not}"

    def _across_groups(self, workload: Workload, ranks: int) -> tuple[Workload, int]:
        """What the other strategy is asked about: the heads of the rank of a group that has the
        fewest, and the number of groups."""
        fewest = workload.key_heads // int(self.tp)
        heads = fewest * (workload.heads // workload.key_heads)
        return with_heads(workload, heads, fewest), ranks // int(self.tp)

    def along(self, axis: str, workload: Workload, ranks: int) -> FixedCutPlan:
        return FixedCutPlan(
            strategy=self,
            workload=workload,
            ranks=ranks,
            layout=(axis,) * len(workload.stack),
            keep_input=self.keep_input,
        )

    def in_groups(self, strategy: Strategy, across: Plan, workload: Workload, size: int) -> Plan:
        """Groups of ``size`` neighbours, across which the plan of any strategy goes.

        Parameters
        ----------
        strategy
            Whose plan it is.
        across
            For the heads of the rank of a group that has the fewest; a group is one rank of it.
        workload
            What all ranks share.
        size
            Ranks of a group.
        """
        return GroupsPlan(
            strategy=strategy,
            workload=workload,
            ranks=across.ranks * size,
            layout=across.layout,
            keep_input=self.keep_input,
            size=size,
            across=across,
            alone=ALONE,
        )

    def on_each_axis(self, workload: Workload, ranks: int) -> Sequence[FixedPlan]:
        if self.tp == AUTO:
            return super().on_each_axis(workload, ranks)
        # What goes across has settled how, before the axis is chosen: along each it is the same.
        across = self.other.on(*self._across_groups(workload, ranks))
        settled = replace(self, rows=across.rows)
        return [
            FixedGroupsPlan(
                strategy=settled,
                keep_input=self.keep_input,
                alone=self.across,
                workload=workload,
                ranks=ranks,
                layout=(axis,) * len(workload.stack),
                size=int(self.tp),
                across=across.strategy.along(axis, across.workload, across.ranks),
            )
            for axis in self.axes(workload, ranks)
        ]


class _GatherProduct(torch.autograd.Function):
    """A gather under the product in; backward, its sum's scatter under both products."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: Tensor, bias: Tensor, *how: Any) -> Tensor:
        ctx.comm, ctx.shard, ctx.keep_input = comm, shard, keep_input = how
        gather = comm.start_all_gather(x, shard)
        out = _product(gather, shard, matrix.t(), bias)
        ctx.save_for_backward(gather.wait() if keep_input else x, matrix)
        return out.movedim(0, shard.dim)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        saved, matrix = ctx.saved_tensors
        gather = None if ctx.keep_input else ctx.comm.start_all_gather(saved, ctx.shard)
        grad = grad.movedim(ctx.shard.dim, 0).contiguous()  # as gather and scatter have it
        scatter = _start_sum(grad, matrix, ctx.shard, ctx.comm)
        x = saved if gather is None else gather.wait()
        # (S, B, ..., H) as rows: dW = grad^T x over all positions.
        inputs = x.movedim(ctx.shard.dim, 0)
        rows, inputs = grad.flatten(0, -2), inputs.flatten(0, -2)
        return scatter.wait(), rows.t() @ inputs, rows.sum(0), None, None, None


class _PartialSums(torch.autograd.Function):
    """Stands for the product out above its scatter. What backward needs is saved before that: so
    recomputation, which stops as soon as all is saved, does not send it again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: Tensor, *how: Any) -> Tensor:
        ctx.gathers, ctx.shard = how
        ctx.save_for_backward(x, matrix)
        return x.new_empty(1).expand(*x.shape[:-1], len(matrix))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor) -> tuple[Any, ...]:
        (x, matrix), gather, dim = ctx.saved_tensors, ctx.gathers.pop(), ctx.shard.dim
        d_x = _product(gather, ctx.shard, matrix).movedim(0, dim)
        rows, inputs = (whole.movedim(dim, 0).flatten(0, -2) for whole in (gather.wait(), x))
        return d_x, rows.t() @ inputs, None, None


class _ProductScatter(torch.autograd.Function):
    """The product out, whose scatter is under way meanwhile; backward starts the gather."""

    @staticmethod
    def forward(ctx: Any, _: Tensor, bias: Tensor, factors: Sequence[Tensor], *how: Any) -> Tensor:
        ctx.gathers, ctx.shard, ctx.comm = how
        (x, matrix), shard, comm = factors, ctx.shard, ctx.comm
        return _start_sum(x.movedim(shard.dim, 0), matrix.t(), shard, comm).wait().add_(bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        of_bias = grad.movedim(ctx.shard.dim, 0).flatten(0, -2).sum(0)
        if not ctx.needs_input_grad[0]:  # nobody would wait for it
            return None, of_bias, None, None, None, None
        gather = ctx.comm.start_all_gather(grad, ctx.shard, lets_go=True)
        ctx.gathers.append(gather)
        # Parts of the whole are still under way: ``_PartialSums`` waits for each.
        return gather.whole, of_bias, None, None, None, None


def _product(gather: Gathering, shard: Shard, matrix: Tensor, bias: Tensor | None = None) -> Tensor:
    """(S, ..., n): what is gathered, (s, ..., k) from each rank, times (k, n)."""
    parts = gather.arriving(LEAST_ROWS)
    # The first is this rank's own, or all of them.
    rows, part = next(parts)
    out = part.new_empty(shard.length, *part.shape[1:-1], matrix.shape[1])
    _multiply(part, matrix, out[rows], bias)
    for rows, part in parts:
        _multiply(part, matrix, out[rows], bias)
    return out


def _start_sum(x: Tensor, matrix: Tensor, shard: Shard, comm: Collectives) -> Pending[Tensor]:
    """Starts to sum the ranks' x (S, ..., k) times (k, n): each rank's rows leave once computed."""
    partial_sums = x.new_empty(*x.shape[:-1], matrix.shape[1])

    def fill(rows: slice) -> None:
        _multiply(x[rows], matrix, partial_sums[rows])

    return comm.start_reduce_scatter(
        partial_sums.movedim(0, shard.dim), shard, fill, least=LEAST_ROWS
    )


def _multiply(x: Tensor, matrix: Tensor, into: Tensor, bias: Tensor | None = None) -> None:
    """x (..., k) times (k, n), without gaps in memory, as its rows."""
    rows, out = x.flatten(0, -2), into.flatten(0, -2)
    if bias is None:
        torch.mm(rows, matrix, out=out)
    else:
        torch.addmm(bias, rows, matrix, out=out)
