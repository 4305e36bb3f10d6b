"""Ring attention in blocks (Liu et al., ICLR 2024): K and V go round, parts are merged.

One axis stays sharded. To attend along it, each rank's keys and values go round a ring as one
message; the next is under way while the block at hand is computed. What a block gives is merged
by log-sum-exp (``layers/blockwise.py``), so that no row of scores is ever held.

    out, lse = merge of attention to (k_0, v_0), (k_1, v_1), ...     a ring of K and V   2 f K sent
    dQ += ..., dK_i, dV_i += ...      the same ring, and the gradients behind it   2 f K and 2 f K

f = (N - 1) / N; K is the bytes of the whole sequence's keys (``Workload.key_bytes``). Gradients go
round in float32, 4 bytes a number: from the first rank that adds to them to the one that holds the
keys. Under a causal mask shards are zigzag (Brandon et al., 2023; Llama 3), and
blocks that are masked are not computed.

Where a query sees a window of keys alone, shards are single runs, and blocks go on only as far as
the farthest rank that sees any of one, h ranks: h blocks are sent, and as many sums of gradients,
the last of which goes home at once. A window behind its query makes that one rank, if it is
no longer than a shard; one on both sides all of them, as the rank before is the last to be reached.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from spbench.comm.collectives import Collectives
from spbench.comm.compiler import applied
from spbench.comm.pending import Pending
from spbench.comm.transport import DONE
from spbench.layers import blockwise
from spbench.layers.attention import Folding, Scores, attend_projected, projected_traffic
from spbench.layers.blockwise import (
    Part,
    add_gradients,
    first,
    folded_shard,
    from_row,
    pack,
    tile,
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
from spbench.strategies.refusals import biased_why_not, blocks_why_not
from spbench.workload.block import Attention, Sublayer
from spbench.workload.edges import Edges
from spbench.workload.fields import DTYPE_BYTES
from spbench.workload.sharding import Shard, Sizes
from spbench.workload.strands import Between
from spbench.workload.traffic import Traffic, Transfer
from spbench.workload.workload import Workload


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class RingPlan(BalancedPlan):
    """A ring of keys and values forward; another, and their gradients behind it, backward."""

    strategy: Ring

    @property
    def queries_stay(self) -> bool:
        return True

    def sublayer_traffic(self, sublayer: Sublayer, axis: str) -> Traffic:
        if not isinstance(sublayer, Attention) or axis not in sublayer.attended:
            return super().sublayer_traffic(sublayer, axis)
        if sublayer.projection:
            return projected_traffic(sublayer, self.workload, self.ranks)
        edges = self.edges(sublayer)
        return self._around(self.held(axis), None if edges is None else edges.hops)

    def traffic_between(self, one: Between, queries: Sizes, keys: Sizes) -> Traffic:
        return self._around(keys)  # queries stay, whoever's they are

    def _around(self, sizes: Sizes, hops: int | None = None) -> Traffic:
        """What a ring sends of keys that ranks hold so; ``hops``: how far each block goes, None:
        all the way."""
        both = self.workload.key_value_bytes
        # Gradients go round in 4 bytes at least: twice the bytes of 16-bit keys.
        wider = max(1, 4 // DTYPE_BYTES[self.workload.dtype])
        wider = 1 if self.strategy.half_gradients else wider
        if hops is not None:
            return _stopping(both, sizes, hops, wider)
        # Each rank sends on the sum for each block but its own: the bytes of a reduce-scatter.
        home = replace(Transfer.reduce_scatter(wider * both, sizes), op="p2p")
        return [Transfer.ring(both, sizes)], [Transfer.ring(both, sizes), home]

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, scores: Scores, shard: Shard, comm: Collectives
    ) -> Tensor:
        if shard.dim not in scores.dims or comm.size == 1:
            return super().attend(q, k, v, scores, shard, comm)
        if scores.projection is not None:
            return attend_projected(q, k, v, scores, shard, comm)
        how = scores, shard, comm, self.strategy.half_gradients
        if scores.mask is not None:
            return applied(_Stopping, q, k, v, scores.sinks, *how)
        return applied(_Ring, q, k, v, scores.sinks, *how)


def _stopping(whole_bytes: int, sizes: Sizes, hops: int, wider: int) -> Traffic:
    """Transfers of a ring that stops when each block has gone ``hops`` ranks on."""
    if not hops:
        return [], []
    ring = Transfer.short_ring(whole_bytes, sizes, hops, are_sums=False)
    return [ring], [ring, Transfer.short_ring(wider * whole_bytes, sizes, hops, are_sums=True)]


@final
@dataclass(frozen=True, kw_only=True)
class Ring(BalancedAxis):
    """With ``half_gradients`` gradients of 16-bit keys travel in 16 bits, rounded at each hop."""

    forms: ClassVar[tuple[str, ...]] = ("half-gradients", "balance=work")
    plan: ClassVar[type[RingPlan]] = RingPlan
    half_gradients: bool = False

    @property
    def beside_axes(self) -> Ring:
        return self.with_any_axis

    def why_not_along(self, axis: str, workload: Workload, ranks: int) -> str | None:
        unfit = biased_why_not(axis, workload) or blocks_why_not(axis, workload)
        return super().why_not_along(axis, workload, ranks) or unfit


def around(
    mine: Tensor, keys: Shard, comm: Collectives, hops: int | None = None
) -> Iterator[tuple[int, Tensor]]:
    """Each rank and its block, this one's first; the next is under way while one is at hand.

    ``hops``: on how many ranks a block goes; None: to all.
    """
    hops = comm.size - 1 if hops is None else hops
    coming = Pending(DONE, mine)
    # Rank 1 of 4 counts 1, 0, -1, -2, which modulo 4 are the owners 1, 0, 3 and 2: its own block,
    # then the others as they come round. A negative index reads ``keys.sizes`` from its end.
    for owner in range(comm.rank, comm.rank - hops - 1, -1):
        block = coming.wait()
        if owner > comm.rank - hops:
            coming = comm.start_shift(block, keys.sizes[owner - 1])
        yield owner % comm.size, block


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, *how: Any) -> Tensor:
        sinks, scores, shard, comm, half = how
        folding = Folding.of(q.shape, scores.dims)
        queries, keys_values = folding.fold(q), (folding.fold(k), folding.fold(v))
        mine, sizes = pack(*keys_values), widths(k, v)
        keys = folded_shard(shard, len(mine), comm.rank)
        total: Part | None = None
        for owner, block in around(mine, keys, comm):
            row, count, causal = tile(keys, comm.rank, owner, scores.causal)
            if count:
                given = from_row(queries, row), *unpack(first(block, count), sizes)
                part = blockwise.attend_block(*given, causal=causal)
                total = blockwise.merge(total, part, row)
        assert total is not None, "a rank sees its own keys"
        total = with_sinks(total, sinks)
        out = put_outermost(folding.unfold(total.out), shard.dim, q.dtype)
        ctx.save_for_backward(q, mine, out, total.lse, sinks)
        dtype = q.dtype if half else total.lse.dtype
        ctx.how = folding, folding.of_keys(k), keys, scores.causal, comm, dtype, sizes
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        q, mine, out, lse, sinks = ctx.saved_tensors
        folding, of_keys, keys, masked, comm, dtype, sizes = ctx.how
        rows = *(folding.fold(x) for x in (grad, q, out)), lse
        # Gradients of a block travel behind it, and begin where it comes first.
        coming: Pending[Tensor] | None = None
        d: Tensor | None = None
        d_q = None
        own: Sequence[Tensor] = ()
        for owner, block in around(mine, keys, comm):
            row, count, causal = tile(keys, comm.rank, owner, masked)
            d_keys: Sequence[Tensor] = ()
            if count:
                d_out, queries, *whole = (from_row(x, row) for x in rows)
                tiles: Any = d_out, queries, *unpack(first(block, count), sizes), Part(*whole)
                d, *d_keys = blockwise.block_gradients(*tiles, causal=causal)
                d_q = blockwise.added(d_q, d, row)
            if owner == comm.rank:
                own = d_keys  # the sum of the others' comes home last
                continue
            # The sum of what ranks before this one added to; of the block that comes first, none.
            sums = coming.wait() if coming else block.new_zeros(block.shape, dtype=dtype)
            sums = add_gradients(sums, d_keys)
            d, d_keys = None, ()  # freed before there is memory for what comes
            coming = comm.start_shift(sums, keys.sizes[owner - 1])
        assert coming is not None, "a ring has two ranks or more"
        d_mine = unpack(add_gradients(coming.wait(), own).to(q.dtype), sizes)
        d_sinks = gradient_of_sinks(rows[0], rows[2], lse, sinks)
        return folding.unfold(d_q).to(q.dtype), *map(of_keys.unfold, d_mine), d_sinks, *(None,) * 4


class _Stopping(torch.autograd.Function):
    """A ring under a mask: of each block the tiles that the mask shows, and no blocks that it hides
    from all ranks further on."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, *how: Any) -> Tensor:
        sinks, scores, shard, comm, half = how
        folding = Folding.of(q.shape, scores.dims)
        queries, keys_values = folding.fold(q), (folding.fold(k), folding.fold(v))
        mine, sizes = pack(*keys_values), widths(k, v)
        keys, held = folded_shard(shard, len(mine), comm.rank), scores.held(q.shape, shard)
        hops = Edges.of(held, scores.mask).hops
        total = nothing_seen(queries, keys_values[1])
        for owner, block in around(mine, keys, comm, hops):
            tiles = scores.mask.tiles(held[comm.rank], held[owner])
            block_k, block_v = unpack(block, sizes)
            add_tiles(total, queries, block_k, block_v, tiles)
        total = with_sinks(total, sinks)
        out = put_outermost(folding.unfold(total.out), shard.dim, q.dtype)
        ctx.save_for_backward(q, mine, out, total.lse, sinks)
        dtype = q.dtype if half else total.lse.dtype
        ctx.how = folding, keys, held, scores.mask, hops, comm, dtype, sizes
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        q, mine, out, lse, sinks = ctx.saved_tensors
        folding, keys, held, mask, hops, comm, dtype, sizes = ctx.how
        rows = *(folding.fold(x) for x in (grad, q, out)), lse
        d_q = rows[1].new_zeros(rows[1].shape, dtype=lse.dtype)
        own = mine.new_zeros(mine.shape, dtype=lse.dtype)
        coming: Pending[Tensor] | None = None
        for owner, block in around(mine, keys, comm, hops):
            sums = own
            if owner != comm.rank:
                sums = coming.wait() if coming else block.new_zeros(block.shape, dtype=dtype)
            tiles = mask.tiles(held[comm.rank], held[owner])
            both = unpack(block, sizes)
            add_gradients_of_tiles([d_q, *unpack(sums, sizes)], rows, both, tiles)
            if owner == comm.rank:
                continue  # the sum of the others' comes home last
            if owner % comm.size == (comm.rank - hops) % comm.size:
                # No rank behind this one sees the block.
                coming = comm.start_shift(sums, len(mine), by=-hops)
            else:
                coming = comm.start_shift(sums, keys.sizes[owner - 1])
        if coming is not None:
            own.add_(coming.wait())
        d_mine = unpack(own.to(q.dtype), sizes)
        d_sinks = gradient_of_sinks(rows[0], rows[2], lse, sinks)
        return folding.unfold(d_q).to(q.dtype), *map(folding.unfold, d_mine), d_sinks, *(None,) * 4
