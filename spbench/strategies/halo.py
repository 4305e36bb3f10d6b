"""A halo exchange: where a window ends attention, ranks get the keys beside their own, no others.

One axis stays sharded. A query at position i sees the keys from i - before to i + after: each rank
sends what lies so near to others' queries, and attends to its own keys meanwhile.

    ranks                   | own positions | own positions | own positions |
    keys of the second          [ before ]  | own           |  [ after ]

    k, v   (B, S/N, Zkv, D)   edges to the neighbours, before + after positions     2 w K / S sent
    dK, dV                    of the edges back, summed where the keys are          2 w K / S

with w = before + after, K the bytes of all keys and S positions: no rank sends more, however many
there are. Edges may reach over several ranks, and a rank may hold several runs of positions. Where
windows are boxes of several axes, an edge is what a rank has of boxes that others have a part of.
Attentions without a window go by another strategy, Ulysses unless it is named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from spbench.comm.collectives import Collectives
from spbench.comm.compiler import applied
from spbench.comm.packing import Cut
from spbench.comm.pending import Pending
from spbench.layers.attention import Folding, Scores
from spbench.layers.kernels import (
    add_gradients_of_tiles,
    add_tiles,
    gradient_of_sinks,
    nothing_seen,
    with_sinks,
)
from spbench.layers.memory_order import put_outermost
from spbench.strategies.fixed_axis import AUTO, FixedAxis, FixedPlan
from spbench.strategies.refusals import across_misfit
from spbench.strategies.registry import WHOLE, exchange
from spbench.workload.block import Attention, Mlp, Stack, Sublayer
from spbench.workload.edges import Edge, Edges
from spbench.workload.flattened import flattened
from spbench.workload.mesh import Mesh
from spbench.workload.sharding import Run, Shard
from spbench.workload.traffic import Traffic, Transfer
from spbench.workload.workload import Workload


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class HaloPlan(FixedPlan):
    """Edges of keys and values where there is a window, another strategy's plan where there is
    none."""

    strategy: Halo
    whole: FixedPlan
    """For attentions without a window."""

    @cached_property
    def mesh(self) -> Mesh:
        return self.whole.mesh

    @property
    def queries_stay(self) -> bool:
        return True

    @property
    def notes(self) -> str:
        said = f"attention without a window goes by {self.strategy.whole}"
        return said if _has_whole(self.axis, self.workload) else ""

    def shard(self, axis: str) -> Shard:
        return self.whole.shard(axis)

    def sublayer_traffic(self, sublayer: Sublayer, axis: str) -> Traffic:
        if not isinstance(sublayer, Attention) or axis not in sublayer.attended:
            return super().sublayer_traffic(sublayer, axis)
        edges = self.edges(sublayer)
        if edges is None:
            return self.whole.sublayer_traffic(sublayer, axis)
        if not edges.all:
            return [], []
        both, length = self.workload.key_value_bytes, self.workload.length(sublayer)
        there, back = (
            Transfer.edges(both, counts, length) for counts in (edges.sent, edges.received)
        )
        return [there], [back]

    def sent_by_attend(self, sublayer: Sublayer, axis: str) -> list[Transfer]:
        if isinstance(sublayer, Attention) and self.workload.mask(sublayer) is None:
            return self.whole.sent_by_attend(sublayer, axis)
        return super().sent_by_attend(sublayer, axis)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, scores: Scores, shard: Shard, comm: Collectives
    ) -> Tensor:
        if shard.dim not in scores.dims or comm.size == 1:
            return super().attend(q, k, v, scores, shard, comm)
        if scores.mask is None:
            return self.whole.attend(q, k, v, scores, shard, comm)
        return applied(_Halo, q, k, v, scores.sinks, scores, shard, comm)


@final
@dataclass(frozen=True, kw_only=True)
class Halo(FixedAxis):
    """``whole``: what serves attentions without a window along the sharded axis."""

    forms: ClassVar[tuple[str, ...]] = ()
    plan: ClassVar[type[HaloPlan]] = HaloPlan
    whole: str = WHOLE[0]

    @property
    def other(self) -> FixedAxis:
        """The strategy of attentions without a window."""
        return exchange(self.whole, shard_axis=self.shard_axis)

    def flattened(self, workload: Workload) -> Workload:
        """Boxes have short edges along an axis, and long ones along several in a row: these axes
        are cut by themselves."""
        if self.shard_axis != AUTO:
            return super().flattened(workload)
        boxed = [each.axes for each in workload.attentions if isinstance(each.window, tuple)]
        return flattened(workload, apart={axis for axes in boxed for axis in axes})

    def misfit(self, workload: Workload) -> str | None:
        unfit = across_misfit(self.whole, WHOLE)
        return (unfit and unfit.replace("across=", "whole=")) or super().misfit(workload)

    def why_not_along(self, axis: str, workload: Workload, ranks: int) -> str | None:
        too_short = super().why_not_along(axis, workload, ranks)
        if too_short:
            return too_short
        if not any(workload.mask(each) and axis in each.axes for each in workload.attentions):
            return (
                f"no attention along {axis} has a window, whose edges it would exchange; write "
                f"one, as in window: 128, or take {self.whole}"
            )
        unfit = self.other.why_not_along(axis, _without_windows(workload), ranks)
        return unfit and f"attention without a window goes by whole={self.whole}: {unfit}"

    def along(self, axis: str, workload: Workload, ranks: int) -> HaloPlan:
        return HaloPlan(
            strategy=self,
            workload=workload,
            ranks=ranks,
            layout=(axis,) * len(workload.stack),
            whole=self.other.along(axis, _without_windows(workload), ranks),
        )


def _has_whole(axis: str, workload: Workload) -> bool:
    return any(axis in each.axes and not workload.mask(each) for each in workload.attentions)


def _without_windows(workload: Workload) -> Workload:
    """With an mlp in place of each attention that has a window."""

    def other(sublayer: Sublayer) -> Sublayer:
        has_window = isinstance(sublayer, Attention) and workload.mask(sublayer) is not None
        return Mlp(mlp=1.0) if has_window else sublayer

    parts = [
        Stack(depth=part.depth, block=tuple(map(other, part.block))) for part in workload.parts
    ]
    return workload.with_parts(parts)


def _start(
    rows: Tensor, sent: Sequence[int], coming: Sequence[int], comm: Collectives
) -> Pending[Tensor]:
    """Starts to send ``rows`` (n, ...), so many to each rank; gives those that come from each."""
    arriving = comm.transport.empty(rows, (sum(coming), *rows.shape[1:]))
    to_each, from_each = (Shard.of_sizes(0, (*counts,)) for counts in (sent, coming))
    handle = comm.transport.edges(Cut(arriving, 0, from_each), Cut(rows, 0, to_each))
    return comm.pending(handle, arriving)


def _counts(edges: Sequence[Edge], others: Sequence[int], ranks: int) -> list[int]:
    counts = [0] * ranks
    for edge, other in zip(edges, others, strict=True):
        counts[other] += edge.run[1]
    return counts


class _Halo(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, *how: Any) -> Tensor:
        sinks, scores, shard, comm = how
        folding = Folding.of(q.shape, scores.dims)
        queries, own_k, own_v = (folding.fold(x) for x in (q, k, v))
        held, rank = scores.held(q.shape, shard), comm.rank
        edges = Edges.of(held, scores.mask)
        leaving, coming = edges.leaving(rank), edges.coming(rank)
        sizes = (
            _counts(leaving, [edge.to for edge in leaving], comm.size),
            _counts(coming, [edge.source for edge in coming], comm.size),
        )
        places = [edges.in_memory(rank, edge.run) for edge in leaving]
        total = nothing_seen(queries, own_v)
        both = own_k, own_v
        pending = None
        if edges.all:
            pending = _start(_rows(both, places), *sizes, comm)
        rows, theirs = held[rank], tuple(edge.run for edge in coming)
        add_tiles(total, queries, own_k, own_v, scores.mask.tiles(rows, rows))
        other_k, other_v = own_k[:, :, :0], own_v[:, :, :0]
        if pending is not None:
            other_k, other_v = _parted(pending.wait(), both)
            add_tiles(total, queries, other_k, other_v, scores.mask.tiles(rows, theirs))
        total = with_sinks(total, sinks)
        out = put_outermost(folding.unfold(total.out), shard.dim, q.dtype)
        ctx.save_for_backward(q, *both, other_k, other_v, out, total.lse, sinks)
        ctx.how = folding, scores.mask, rows, theirs, bool(edges.all), comm, places, sizes
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        q, own_k, own_v, other_k, other_v, out, lse, sinks = ctx.saved_tensors
        folding, mask, runs, theirs, has_edges, comm, places, sizes = ctx.how
        rows = *(folding.fold(x) for x in (grad, q, out)), lse
        d_q, *d_own = (x.new_zeros(x.shape, dtype=lse.dtype) for x in (rows[1], own_k, own_v))
        d_others = [x.new_zeros(x.shape, dtype=lse.dtype) for x in (other_k, other_v)]
        # What goes back first: it is under way while the rest is computed.
        others = other_k, other_v
        add_gradients_of_tiles([d_q, *d_others], rows, others, mask.tiles(runs, theirs))
        pending = None
        if has_edges:
            leaving = _rows([x.to(q.dtype) for x in d_others], [(0, d_others[0].shape[2])])
            pending = _start(leaving, sizes[1], sizes[0], comm)
        add_gradients_of_tiles([d_q, *d_own], rows, (own_k, own_v), mask.tiles(runs, runs))
        if pending is not None:
            back, at = _parted(pending.wait(), (own_k, own_v)), 0
            for first, length in places:
                for total, part in zip(d_own, back, strict=True):
                    total.narrow(2, first, length).add_(part.narrow(2, at, length))
                at += length
        d_sinks = gradient_of_sinks(rows[0], rows[2], lse, sinks)
        given = (folding.unfold(x.to(q.dtype)) for x in (d_q, *d_own))
        return *given, d_sinks, None, None, None


def _rows(both: Sequence[Tensor], places: Sequence[Run]) -> Tensor:
    """Keys and values (b, Z, S, D) at these places as they travel, (n, b Z D + b Z Dv)."""
    flat = [
        torch.cat([x[:, :, :0], *(x.narrow(2, *place) for place in places)], 2)
        .movedim(2, 0)
        .flatten(1)
        for x in both
    ]
    return torch.cat(flat, 1)


def _parted(rows: Tensor, like: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """``_rows`` undone, as views (b, Z, n, D)."""
    shapes = [(x.shape[0], x.shape[1], x.shape[3]) for x in like]
    flat = rows.split([b * heads * size for b, heads, size in shapes], 1)
    return tuple(x.unflatten(1, shape).movedim(0, 2) for x, shape in zip(flat, shapes, strict=True))
