r"""One rank's queries as rows of scores against all keys, as RSA holds them.

    q (B, *axes, Z, D)   ->  rows (b, s g, D)     the g query heads of a key head together
    k (B, *axes, Zkv, D) ->  keys (S, b, D)       of every rank, in rank order

Scores are (b, s g, S), with b = B x other axes x Zkv, and s of the S positions on this rank.

Under a causal mask a rank's queries meet each rank's keys in turn. Each pair of their chunks is
computed whole, computed and masked (on the diagonal), or skipped. With zigzag shards that is the
same work on every rank: two chunk pairs of four for the keys of each other rank, three for its own.

                 keys of an earlier rank    its own    keys of a later rank
    early chunk      x .                     \ .            . .
    late chunk       x .                     x \            x x

Scores are too large to hold twice: gradients overwrite them, part by part.

What goes round the ring comes under the work at hand. The scores of one rank's keys take as many
products as there are tiles; other work goes by key heads, some for each block that comes, which
takes a processor no longer than all at once.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import prod
from typing import NamedTuple, final

import torch
import torch.nn.functional as F
from torch import Tensor

from spbench.comm.packing import undone
from spbench.comm.pending import RingBlocks
from spbench.layers.attention import Scores
from spbench.workload.sharding import Shard, runs_of, shard_sizes

PARTS, LEAST_ELEMENTS = 8, 2**20
"""Parts of a row of scores whose gradients are computed one after another, unless that makes them
smaller than this: a processor's cache holds a part, and memory for a whole row costs more time."""
LEAST_MEANWHILE = 2**22
"""Elements of a row of scores that are worked on while a block comes. Of 2**20 a step took a CPU 2
to 4 % longer (four ranks of 256 masked positions, heads of 4 numbers), of these 0 to 2 %."""
LEAST_PRODUCTS = 2**24
"""Multiplications of two matrices from which on each rank's scores are computed by themselves, as
its keys come: into a part of the rows, which takes a CPU 5 % longer than all at once; of matrices a
sixteenth as large 10 to 30 % longer, for which no ring is worth it."""
SMALL = range(150, 400)
"""Multiplications of two matrices that torch does number by number on a CPU, since they are fewer
than 400, in up to four times the time of its library with zeros enough to make them 400."""


@dataclass(frozen=True)
class Tile:
    """Scores of one product, as (first, count) of this rank's rows and of all columns."""

    rows: tuple[int, int]
    columns: tuple[int, int]
    masked: bool
    """Whether some keys of the tile come after their query."""


class _Stretch(NamedTuple):
    """Folded positions end to end in a rank's memory, from ``first`` to before ``end``."""

    at: int
    length: int
    first: int
    end: int


@dataclass(frozen=True, kw_only=True)
class Band:
    """The rows of scores of one rank in a ring along ``shard``."""

    shard: Shard
    rank: int
    dims: tuple[int, ...]
    lengths: tuple[int, ...]
    """Whole lengths of the attended ``dims``."""
    causal: bool

    @property
    def _others(self) -> int:
        return prod(self.lengths) // self.shard.length

    def columns_of(self, owner: int) -> tuple[int, int]:
        """First column and number of columns of the keys of ``owner``."""
        return self.shard.offset(owner) * self._others, self.shard.sizes[owner] * self._others

    def tiles(self, owner: int, hidden: bool = False) -> list[Tile]:
        """Tiles to compute of this rank's queries with the keys of ``owner``, or those to skip."""
        start, count = self.columns_of(owner)
        if not self.causal:
            rows = self.shard.sizes[self.rank] * self._others
            return [] if hidden else [Tile((0, rows), (start, count), masked=False)]
        return _merged(
            # masked where the last of these keys comes after the first of these queries
            Tile((q.at, q.length), (start + k.at, k.length), k.end - 1 > q.first and not hidden)
            for q, k in product(self._stretches(self.rank), self._stretches(owner))
            if hidden == (k.first >= q.end)  # all keys come after all queries
        )

    @cached_property
    def all_tiles(self) -> list[Tile]:
        """Tiles to compute of this rank's queries with all keys."""
        return _merged(tile for owner in range(len(self.shard.sizes)) for tile in self.tiles(owner))

    def hidden(self, tile: Tile, owner: int, device: torch.device) -> Tensor:
        """True where a key of ``owner`` comes after the query: (rows, columns)."""
        rows = self._positions(self.rank, device).narrow(0, *tile.rows)
        column, count = tile.columns
        first = column - self.columns_of(owner)[0]
        return rows[:, None] < self._positions(owner, device).narrow(0, first, count)

    def _stretches(self, rank: int) -> list[_Stretch]:
        """Runs of the outermost attended dim.

        Where another dim is sharded, every rank holds all of the outermost one; cut into 16
        stretches, all but 1/32 of what is masked is skipped.
        """
        outer = self.dims[0] == self.shard.dim
        count = self.lengths[0]
        runs = self.shard.runs[rank] if outer else runs_of(shard_sizes(count, min(count, 16)))
        span = prod(self.lengths[1:])
        held = span if outer else span * self.shard.sizes[rank] // self.shard.length
        stretches, at = [], 0
        # A run of the outermost dim covers ``span`` positions each in the whole sequence, of which
        # this rank holds ``held``: all of them, or its share of an inner dim.
        for first, length in runs:
            stretches.append(_Stretch(at, length * held, first * span, (first + length) * span))
            at += length * held
        return stretches

    def _positions(self, rank: int, device: torch.device) -> Tensor:
        """The place of each of ``rank``'s folded positions in the whole sequence."""
        place = torch.zeros(1, dtype=torch.int64, device=device)
        for dim, length in zip(self.dims, self.lengths, strict=True):
            runs = self.shard.runs[rank] if dim == self.shard.dim else [(0, length)]
            own = torch.cat([torch.arange(a, a + n, device=device) for a, n in runs])
            # As digits of a number, the outermost dim first: (t, h, w) is (t H + h) W + w.
            place = (place[:, None] * length + own).flatten()
        return place


def _merged(tiles: Iterable[Tile]) -> list[Tile]:
    """Neighbours without a mask as one tile: fewer and larger products."""
    merged: list[Tile] = []
    for tile in tiles:
        last = merged[-1] if merged and not (merged[-1].masked or tile.masked) else None
        if last and last.columns == tile.columns and sum(last.rows) == tile.rows[0]:
            merged[-1] = replace(last, rows=(last.rows[0], last.rows[1] + tile.rows[1]))
        elif last and last.rows == tile.rows and sum(last.columns) == tile.columns[0]:
            merged[-1] = replace(last, columns=(last.columns[0], last.columns[1] + tile.columns[1]))
        else:
            merged.append(tile)
    return merged


@final
class Rows:
    """How q, k, scores and bias of ``rank`` are laid out in a ring along ``shard``."""

    def __init__(self, q: Tensor, k: Tensor, scores: Scores, shard: Shard, rank: int) -> None:
        self.shard, self.batch = shard, q.shape[0]
        self.key_heads, self.group = k.shape[-2], q.shape[-2] // k.shape[-2]
        heads, dims = q.ndim - 2, scores.dims
        others = [dim for dim in range(heads) if dim not in dims]
        self._others, self._positions = ([q.shape[dim] for dim in some] for some in (others, dims))
        # Of (B, *axes, Zkv, g, D), and of (B, *axes, Zkv, D).
        self._rows_order = [*others, heads, *dims, heads + 1, heads + 2]
        self._keys_order = [*dims, *others, heads, heads + 1]
        self.band = Band(
            shard=shard,
            rank=rank,
            dims=dims,
            lengths=tuple(shard.length if d == shard.dim else q.shape[d] for d in dims),
            causal=scores.causal,
        )

    @cached_property
    def keys(self) -> Shard:
        """How all keys, (S, b, D), are shared between the ranks."""
        owners = range(len(self.shard.sizes))
        return Shard.of_sizes(0, tuple(self.band.columns_of(owner)[1] for owner in owners))

    def fold(self, q: Tensor) -> Tensor:
        grouped = q.unflatten(-2, (self.key_heads, self.group)).permute(self._rows_order)
        return grouped.reshape(-1, math.prod(self._positions) * self.group, q.shape[-1])

    def unfold(self, rows: Tensor) -> Tensor:
        """(b, s g, D) -> (B, *axes, Zkv, g, D), a view."""
        apart = rows.unflatten(1, (*self._positions, self.group))
        apart = apart.unflatten(0, (*self._others, self.key_heads))
        return apart.permute(undone(self._rows_order))

    def fold_keys(self, keys: Tensor) -> Tensor:
        """This rank's keys as they go round the ring, (s, b, D)."""
        outermost = keys.permute(self._keys_order).contiguous()
        return outermost.view(math.prod(self._positions), -1, keys.shape[-1])

    def unfold_keys(self, keys: Tensor) -> Tensor:
        """``fold_keys`` undone, a view."""
        apart = keys.unflatten(1, (*self._others, self.key_heads)).unflatten(0, self._positions)
        return apart.permute(undone(self._keys_order))

    @cached_property
    def tiles(self) -> list[tuple[slice, slice]]:
        """All products of this rank's rows: one, or one for each part that a mask leaves."""
        return [self._slices(tile) for tile in self.band.all_tiles]

    @cached_property
    def hidden_tiles(self) -> list[tuple[slice, slice]]:
        """Parts of this rank's scores that a mask hides whole."""
        owners = range(len(self.shard.sizes))
        return [
            self._slices(tile) for owner in owners for tile in self.band.tiles(owner, hidden=True)
        ]

    def _slices(self, tile: Tile) -> tuple[slice, slice]:
        """Rows and columns of a tile in the scores."""
        (row, rows), (column, columns), g = tile.rows, tile.columns, self.group
        # A position has g rows, one for each query head of the key head.
        return slice(row * g, (row + rows) * g), slice(column, column + columns)

    def tiles_as_they_come(self, ring: RingBlocks) -> Iterator[tuple[slice, slice]]:
        """Yields products whose keys are there; small ones as few and large as can be, at last."""
        rows, head_size = math.prod(self._positions) * self.group, ring.whole.shape[-1]
        if rows * min(self.keys.sizes) * head_size < LEAST_PRODUCTS:
            ring.wait()
            yield from self.tiles
            return
        for owner in ring.arriving():
            yield from (self._slices(tile) for tile in self.band.tiles(owner))

    def product(
        self,
        left: Tensor,
        keys: Tensor,
        hidden: float,
        tiles: Iterable[tuple[slice, slice]] | None = None,
    ) -> Tensor:
        """(b, rows, D) times (S, b, D)^T.

        Parameters
        ----------
        left, keys : Tensor
            (b, rows, D) and (S, b, D).
        hidden
            What is written in the tiles that are masked whole.
        tiles
            All products, in the order in which ``keys`` come; None: they are there.

        Returns
        -------
        Tensor
            (b, rows, S).
        """
        scores = left.new_empty(*left.shape[:2], self.keys.length)
        for rows, columns in self.hidden_tiles:
            scores[:, rows, columns] = hidden
        for rows, columns in self.tiles if tiles is None else tiles:
            right = keys[columns].permute(1, 2, 0)
            torch.bmm(left[:, rows], right, out=scores[:, rows, columns])
        return scores

    def times_keys(self, row: Tensor, keys: Tensor) -> Tensor:
        """(b, rows, S) times (S, b, D), without the tiles that are masked whole."""
        by_row = keys.transpose(0, 1)
        tiles = [(rows, row[:, rows, columns], by_row[:, columns]) for rows, columns in self.tiles]
        return summed_products(tiles, row.shape[1], dim=1)

    def turned_product(self, left: Tensor, row: Tensor, ring: RingBlocks) -> Tensor:
        """(b, rows, D)^T times (b, rows, S) as (b, D, S); a CPU is slower with (b, S, D).

        It has nothing to do with what comes round the ``ring`` meanwhile.
        """
        parts = meanwhile(row, ring)
        if len(parts) == 1:
            return self._turned_product(left, row)
        turned = left.new_empty(len(left), left.shape[2], row.shape[2])
        for part in parts:
            turned[part] = self._turned_product(left[part], row[part])
            ring.advance()
        return turned

    def _turned_product(self, left: Tensor, row: Tensor) -> Tensor:
        tiles = [(columns, left[:, rows].mT, row[:, rows, columns]) for rows, columns in self.tiles]
        return summed_products(tiles, row.shape[2], dim=2)

    def mask_(self, scores: Tensor) -> Tensor:
        """Writes minus infinity where a key comes after the query."""
        for owner in range(len(self.shard.sizes)):
            for tile in self.band.tiles(owner):
                if tile.masked:
                    hidden = self.band.hidden(tile, owner, scores.device)
                    part = scores[:, *self._slices(tile)].unflatten(1, (-1, self.group))
                    part.masked_fill_(hidden[:, None], -torch.inf)
        return scores

    def add_bias_(self, scores: Tensor, bias: Tensor) -> None:
        """Adds the ``bias`` (B, s, S, Z) of this rank's queries."""
        # (B, s, S, Zkv g) -> (B, Zkv, s, g, S), as scores lie: (B, others, Zkv, s g, S)
        grouped = bias.unflatten(-1, (self.key_heads, self.group)).permute(0, 3, 1, 4, 2)
        by_sample = scores.unflatten(0, (self.batch, -1, self.key_heads))
        by_sample += grouped.flatten(2, 3)[:, None]

    def bias_gradient(self, d_scores: Tensor) -> Tensor:
        summed = d_scores.unflatten(0, (self.batch, -1, self.key_heads)).sum(1)
        # (B, Zkv, s g, S) -> (B, s, S, Zkv g), which undoes ``add_bias_``
        return summed.unflatten(2, (-1, self.group)).permute(0, 2, 4, 1, 3).flatten(3)


def summed_products(
    products: Sequence[tuple[slice, Tensor, Tensor]], length: int, dim: int
) -> Tensor:
    """(b, m, n), which has ``length`` along ``dim``, from products that belong to slices of it.

    They are summed in float32 at least.
    """
    (_, left, right), *more = products
    shape = [len(left), left.shape[1], right.shape[2]]
    if not more and shape[dim] == length:
        return _product(left, right, dim)
    shape[dim] = length
    total = left.new_zeros(shape, dtype=torch.promote_types(left.dtype, torch.float32))
    for place, left, right in products:
        part = total.narrow(dim, place.start, place.stop - place.start)
        part += left @ right  # baddbmm_ makes as many products as heads, since parts have gaps
    return total.to(right.dtype)


def _product(left: Tensor, right: Tensor, dim: int) -> Tensor:
    """(b, m, k) times (b, k, n); small ones with zeros: rows that are left out again, or, where
    ``dim`` is 2 and the result is to lie without gaps, more to sum over."""
    (_, m, k), n = left.shape, right.shape[2]
    if m * k * n not in SMALL or left.element_size() < 4:
        return left @ right
    if dim == 1:
        rows = math.ceil(SMALL.stop / (k * n))  # as many as make rows k n at least 400
        return (F.pad(left, (0, 0, 0, rows - m)) @ right)[:, :m]
    summands = math.ceil(SMALL.stop / (m * n))
    zeros = (0, 0, 0, summands - k)  # along dim 1, of left^T and of right
    return F.pad(left.mT, zeros).mT @ F.pad(right, zeros)


def meanwhile(row: Tensor, ring: RingBlocks) -> list[slice]:
    """Parts of ``row`` (b, m, n) along b, as many as blocks go round, but not smaller than pays."""
    return _parts(row, len(ring.blocks), LEAST_MEANWHILE)


def softmax_(scores: Tensor, ring: RingBlocks) -> Tensor:
    """Overwrites scores (b, m, n) with their softmax while blocks come round the ``ring``."""
    for part in meanwhile(scores, ring):
        own = scores[part]
        torch.softmax(own, -1, out=own)  # in place: one row, not two
        ring.advance()
    return scores


def _parts(row: Tensor, most: int, least: int) -> list[slice]:
    count = max(1, min(most, len(row), row.numel() // least))
    return [slice(first, first + n) for first, n in runs_of(shard_sizes(len(row), count))]


def softmax_backward_(weights: Tensor, gradient_of: Callable[[slice], Tensor]) -> Tensor:
    """Overwrites softmax's result (b, m, n) with the gradient of its input.

    ``gradient_of``: that of some of the batch of ``weights``. No more of it is held at a time.
    """
    for part in _parts(weights, PARTS, LEAST_ELEMENTS):
        # d_scores = P * (dP - rowsum(P * dP)), written over P
        grad, own = gradient_of(part), weights[part]
        torch.ops.aten._softmax_backward_data.out(grad, own, -1, own.dtype, grad_input=own)
    return weights
