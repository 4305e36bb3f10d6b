"""K/V gather: every rank gathers all keys and values, and attends with its own queries.

Llama 3 shares the sequence this way (Grattafiori et al., 2024, section 3.3.2): queries of grouped
heads outnumber the keys, and stay. One axis stays sharded; attention along any other is local.

    k, v   (B, T/N, S, Zkv, D)  --all-gather-->  (B, T, S, Zkv, D)        2 f K sent
    out    (B, T/N, S, Z, D)     attention of the queries at hand to all keys

Backward scatters the sums of dK and dV, 2 f K; what was gathered is kept for it, or with
``gather_again`` gathered once more: 4 f K. Under a causal mask shards are zigzag; each run of
queries attends to no key behind it, and to the rank's own keys while the others are under way.
Under a window, too, all keys are gathered; a rank computes what its queries see of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar, final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from spbench.comm.collectives import Collectives
from spbench.comm.compiler import applied
from spbench.layers import blockwise
from spbench.layers.attention import (
    Folding,
    Scores,
    attend_projected,
    attend_whole,
    projected_traffic,
)
from spbench.layers.blockwise import (
    Part,
    by_position,
    by_rank,
    folded_shard,
    from_row,
    pack,
    put,
    unpack,
    widths,
)
from spbench.layers.kernels import (
    add_gradients_of_tiles,
    add_tiles,
    gradient_of_sinks,
    nothing_seen,
    with_sinks,
)
from spbench.layers.memory_order import put_outermost
from spbench.strategies.fixed_axis import BalancedAxis, BalancedPlan
from spbench.strategies.refusals import blocks_why_not
from spbench.workload.block import Attention, Sublayer
from spbench.workload.edges import Edges
from spbench.workload.mask import Mask, Runs, Tile
from spbench.workload.sharding import Run, Shard, Sizes
from spbench.workload.strands import Between
from spbench.workload.traffic import Traffic, Transfer
from spbench.workload.workload import Workload


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class GatherPlan(BalancedPlan):
    """A gather of keys and values; backward another, unless they are kept, and a scatter."""

    strategy: KVGather

    @property
    def queries_stay(self) -> bool:
        return True

    def sublayer_traffic(self, sublayer: Sublayer, axis: str) -> Traffic:
        if not isinstance(sublayer, Attention) or axis not in sublayer.attended:
            return super().sublayer_traffic(sublayer, axis)
        if sublayer.projection:
            return projected_traffic(sublayer, self.workload, self.ranks)
        sizes, both = self.held(axis), self.workload.key_value_bytes
        if sublayer.pair_bias:
            return [Transfer.all_gather(both, sizes)], [Transfer.reduce_scatter(both, sizes)]
        return self._gathered(sizes)

    def traffic_between(self, one: Between, queries: Sizes, keys: Sizes) -> Traffic:
        return self._gathered(keys)  # queries stay, whoever's they are

    def _gathered(self, sizes: Sizes) -> Traffic:
        """``sizes``: positions of keys that each rank holds."""
        gather = Transfer.all_gather(self.workload.key_value_bytes, sizes)
        again = self.strategy.gather_again
        of_each = self.workload.key_bytes, self.workload.value_bytes
        scatters = [Transfer.reduce_scatter(each, sizes) for each in of_each]
        return [gather], [gather, *scatters] if again else scatters

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, scores: Scores, shard: Shard, comm: Collectives
    ) -> Tensor:
        if shard.dim not in scores.dims or comm.size == 1:
            return super().attend(q, k, v, scores, shard, comm)
        if scores.projection is not None:
            return attend_projected(q, k, v, scores, shard, comm)
        if scores.bias is not None:  # of the queries at hand: it is not gathered
            k, v = comm.all_gather(torch.cat([k, v], -1), shard).split(widths(k, v), -1)
            return attend_whole(q, k, v, replace(scores, bias_shard=None))
        how = scores, shard, comm, self.strategy.gather_again
        kind = _Gathered if scores.mask is None else _GatheredInTiles
        return applied(kind, q, k, v, scores.sinks, *how)


@final
@dataclass(frozen=True, kw_only=True)
class KVGather(BalancedAxis):
    """With ``gather_again`` it gathers K and V anew for backward: less memory, more bytes."""

    forms: ClassVar[tuple[str, ...]] = ("gather-again", "balance=work")
    plan: ClassVar[type[GatherPlan]] = GatherPlan
    gather_again: bool = False

    @property
    def beside_axes(self) -> KVGather:
        return self.with_any_axis

    def why_not_along(self, axis: str, workload: Workload, ranks: int) -> str | None:
        unfit = blocks_why_not(axis, workload)
        return super().why_not_along(axis, workload, ranks) or unfit


def seen(
    mine: Tensor, gathered: Callable[[], Tensor], keys: Shard, rank: int, causal: bool
) -> Iterator[tuple[int, Sequence[Run], Tensor, bool]]:
    """Blocks of keys: the first query that sees them, their runs, whether their own queries do.

    Under a causal mask a rank's own come first, while the others' are under way; then what lies
    before each of its runs, in order of positions.

    Parameters
    ----------
    mine
        This rank's own keys and values, packed (S/N, 2, b, Z, D).
    gathered
        Waits for those of all ranks, packed, in rank order.
    keys
        Which positions each rank holds.
    rank
        This one.
    causal
        Whether a query sees no later key.

    Returns
    -------
    Iterator
        The first query that sees the block, the block's runs of positions, the block, and whether
        its queries are its own, on the diagonal.
    """
    if not causal:
        yield 0, [(0, keys.length)], gathered(), False
        return
    yield 0, keys.runs[rank], mine, True
    whole, row, end = by_position(gathered(), keys), 0, 0
    for first, length in keys.runs[rank]:
        # Keys between the run before and this one are others': all of this run's queries and later
        # ones see them.
        if first > end:
            yield row, [(end, first - end)], whole[end:first], False
        row, end = row + length, first + length


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, *how: Any) -> Tensor:
        sinks, scores, shard, comm, again = how
        folding = Folding.of(q.shape, scores.dims)
        queries, keys_values = folding.fold(q), (folding.fold(k), folding.fold(v))
        mine, sizes = pack(*keys_values), widths(k, v)
        keys = folded_shard(shard, len(mine), comm.rank)
        total: Part | None = None
        # Posted now, waited for at the first call: by then the rank's own keys are done.
        gathered = cache(comm.start_all_gather(mine, keys).wait)
        for row, _, block, causal in seen(mine, gathered, keys, comm.rank, scores.causal):
            given = from_row(queries, row), *unpack(block, sizes)
            part = blockwise.attend_block(*given, causal=causal)
            total = blockwise.merge(total, part, row)
        assert total is not None, "a rank sees its own keys"
        total = with_sinks(total, sinks)
        out = put_outermost(folding.unfold(total.out), shard.dim, q.dtype)
        ctx.save_for_backward(q, mine if again else gathered(), out, total.lse, sinks)
        ctx.how = folding, folding.of_keys(k), keys, scores.causal, comm, again, sizes
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        q, kept, out, lse, sinks = ctx.saved_tensors
        folding, of_keys, keys, masked, comm, again, sizes = ctx.how
        gathered = comm.start_all_gather(kept, keys).wait if again else lambda: kept
        mine = kept if again else kept.narrow(0, keys.offset(comm.rank), keys.sizes[comm.rank])
        rows, d_q = (*(folding.fold(x) for x in (grad, q, out)), lse), None
        # dK and dV (b, Z, S, D), as the kernel leaves them; under a mask as its blocks fill them,
        # where keys that none of these queries sees keep a gradient of zero.
        d_whole: Sequence[Tensor] = ()
        if masked:
            d_whole = unpack(mine.new_zeros(keys.length, *mine.shape[1:]), sizes)
        for row, runs, block, causal in seen(mine, gathered, keys, comm.rank, masked):
            d_out, queries, *whole = (from_row(x, row) for x in rows)
            tiles: Any = d_out, queries, *unpack(block, sizes), Part(*whole)
            d, *d_keys = blockwise.block_gradients(*tiles, causal=causal)
            d_q = blockwise.added(d_q, d, row)
            if masked:
                put(d_keys, d_whole, runs)
            else:
                d_whole = d_keys
        ordered = [by_rank(x, keys, 2) if masked else x for x in d_whole]
        d_keys, d_whole = [], []
        d_mine = _scattered(ordered, keys, of_keys, comm)
        d_sinks = gradient_of_sinks(rows[0], rows[2], lse, sinks)
        return folding.unfold(d_q).to(q.dtype), *d_mine, d_sinks, *(None,) * 4


def _scattered(
    wholes: list[Tensor], keys: Shard, folding: Folding, comm: Collectives
) -> list[Tensor]:
    """This rank's part of the sums of dK and dV, from those of all keys in rank order."""
    # One after the other: memory for what comes of dV is there once all of dK is gone.
    d_mine = []
    while wholes:
        scatter = comm.start_reduce_scatter(wholes.pop(0), keys.along(2))
        d_mine.append(folding.unfold(scatter.wait()))
    return d_mine


class _GatheredInTiles(torch.autograd.Function):
    """A gather under a mask: of the keys of each rank the tiles that the mask shows."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, *how: Any) -> Tensor:
        sinks, scores, shard, comm, again = how
        folding = Folding.of(q.shape, scores.dims)
        queries, keys_values = folding.fold(q), (folding.fold(k), folding.fold(v))
        mine, sizes = pack(*keys_values), widths(k, v)
        keys, held = folded_shard(shard, len(mine), comm.rank), scores.held(q.shape, shard)
        total = nothing_seen(queries, keys_values[1])
        gathered = cache(comm.start_all_gather(mine, keys).wait)
        for place, tiles in _shown(scores.mask, held, keys, comm.rank):
            block = mine if place is None else gathered().narrow(0, *place)
            block_k, block_v = unpack(block, sizes)
            add_tiles(total, queries, block_k, block_v, tiles)
        whole = gathered()  # waited for also where no other rank's keys are seen
        total = with_sinks(total, sinks)
        out = put_outermost(folding.unfold(total.out), shard.dim, q.dtype)
        ctx.save_for_backward(q, mine if again else whole, out, total.lse, sinks)
        ctx.how = folding, keys, held, scores.mask, comm, again, sizes
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        q, kept, out, lse, sinks = ctx.saved_tensors
        folding, keys, held, mask, comm, again, sizes = ctx.how
        gathered = cache(comm.start_all_gather(kept, keys).wait) if again else lambda: kept
        own = keys.offset(comm.rank), keys.sizes[comm.rank]
        mine = kept if again else kept.narrow(0, *own)
        rows = *(folding.fold(x) for x in (grad, q, out)), lse
        d_q, *d_whole = (
            x.new_zeros(*x.shape[:2], length, x.shape[3], dtype=lse.dtype)
            for x, length in (
                (rows[1], rows[1].shape[2]),
                *((x, keys.length) for x in unpack(mine, sizes)),
            )
        )
        for place, tiles in _shown(mask, held, keys, comm.rank):
            block = mine if place is None else gathered().narrow(0, *place)
            into = [x.narrow(2, *(place or own)) for x in d_whole]
            add_gradients_of_tiles([d_q, *into], rows, unpack(block, sizes), tiles)
        gathered()
        wholes = [x.to(q.dtype) for x in d_whole]
        d_whole = []
        d_mine = _scattered(wholes, keys, folding, comm)
        d_sinks = gradient_of_sinks(rows[0], rows[2], lse, sinks)
        return folding.unfold(d_q).to(q.dtype), *d_mine, d_sinks, *(None,) * 4


def _shown(
    mask: Mask, held: tuple[Runs, ...], keys: Shard, rank: int
) -> Iterator[tuple[Run | None, Sequence[Tile]]]:
    """Where the keys of each rank lie among all, and the tiles of those that these queries see;
    those of this rank come first, and without a place."""
    yield None, mask.tiles(held[rank], held[rank])
    for owner in sorted({edge.source for edge in Edges.of(held, mask).coming(rank)}):
        yield (keys.offset(owner), keys.sizes[owner]), mask.tiles(held[rank], held[owner])
