"""How an axis is cut into shards, one for each rank.

Uneven shards are ordinary: 13 positions on 4 ranks are 4, 3, 3 and 3, neither padded nor dropped.

A shard is usually one run of positions. Under a causal mask late positions have more keys to
attend to, so a ring gives each rank an early and a late chunk (zigzag):

    8 chunks on 4 ranks   0 1 2 3 3 2 1 0
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import accumulate
from math import prod
from typing import NamedTuple

Sizes = tuple[int, ...]
Run = tuple[int, int]  # first position and length


def shard_sizes(length: int, ranks: int) -> Sizes:
    """Positions of each rank, as even as possible, longer shards first.

    >>> shard_sizes(13, 4)
    (4, 3, 3, 3)
    """
    base, extra = divmod(length, ranks)  # 13 on 4: three each, and one more for the first rank
    return (base + 1,) * extra + (base,) * (ranks - extra)


def runs_of(sizes: Sizes) -> tuple[Run, ...]:
    """Runs of these lengths, end to end from 0.

    >>> runs_of((4, 3))
    ((0, 4), (4, 3))
    """
    return tuple(zip(accumulate(sizes, initial=0), sizes, strict=False))


class Stretch(NamedTuple):
    """Places of a dim that are shared out by units: groups of heads with one key, or columns."""

    units: int
    width: int = 1
    """Places of a unit: with g query heads to a key, g."""
    splits: int = 1
    """Equal parts of a unit that different ranks may have, where there are more ranks than units:
    the query heads of a key head."""
    is_copied: bool = False
    """Whether each rank that then has such a part has the whole unit here: the key head itself."""

    @property
    def length(self) -> int:
        return self.units * self.width

    def runs(self, ranks: int) -> "tuple[tuple[Run, ...], ...]":
        """Places of each rank; a copied unit is a run by itself.

        >>> Stretch(2, 8, splits=4).runs(4)
        (((0, 4),), ((4, 4),), ((8, 4),), ((12, 4),))
        >>> Stretch(2, 2, splits=4, is_copied=True).runs(4)
        (((0, 2),), ((0, 2),), ((2, 2),), ((2, 2),))
        """
        if ranks <= self.units:
            counts = runs_of(shard_sizes(self.units, ranks))
            return tuple(((first * self.width, n * self.width),) for first, n in counts)
        parts, width = runs_of(shard_sizes(self.units * self.splits, ranks)), self.width
        if not self.is_copied:
            width //= self.splits
            return tuple(((first * width, n * width),) for first, n in parts)
        # From the unit of the first part that a rank has to the unit of the last.
        ends = ((first // self.splits, (first + n - 1) // self.splits) for first, n in parts)
        return tuple(tuple((unit * width, width) for unit in range(a, b + 1)) for a, b in ends)

    def lengths(self, ranks: int) -> Sizes:
        """Places of each rank."""
        return tuple(sum(length for _, length in own) for own in self.runs(ranks))


@dataclass(frozen=True)
class Shard:
    """A tensor dim, and the positions of it that each rank holds, as runs in ascending order.

    "Rank order" is the ranks' shards end to end: with one run each, the order of positions. Where
    a second dim is cut ``beside`` it, several ranks hold the same positions of each.
    """

    dim: int
    runs: tuple[tuple[Run, ...], ...]
    beside: "Shard | None" = None

    @classmethod
    def of_sizes(cls, dim: int, sizes: Sizes) -> "Shard":
        """One run for each rank, end to end."""
        return cls(dim, tuple((run,) for run in runs_of(sizes)))

    @classmethod
    @lru_cache(maxsize=32)  # a plan asks again and again; of 65,536 ranks each takes megabytes
    def even(cls, dim: int, length: int, ranks: int) -> "Shard":
        return cls.of_sizes(dim, shard_sizes(length, ranks))

    @classmethod
    @lru_cache(maxsize=32)
    def causal(cls, dim: int, length: int, ranks: int) -> "Shard":
        """The most even shards under a causal mask.

        Usually zigzag: rank r holds chunks r and 2 N - 1 - r of 2 N, with the longer chunks
        first or last. A few positions for each rank may be more even in single runs.
        """
        chunks = shard_sizes(length, 2 * ranks)
        # Reversed: a longer late chunk weighs more than a longer early one.
        zigzags = [cls.zigzag(dim, sizes) for sizes in (chunks, chunks[::-1])]
        choices = [shard for shard in zigzags if min(shard.sizes)]  # no rank is left without any
        return min([*choices, cls.even(dim, length, ranks)], key=lambda shard: max(shard.scores))

    @classmethod
    def zigzag(cls, dim: int, chunks: Sizes) -> "Shard":
        """Zigzag shards of chunks of these sizes: of 2 N rank r holds chunks r and 2 N - 1 - r."""
        runs = runs_of(chunks)
        # 0 with 7, 1 with 6, ...: what the early one lacks in keys, the late one has more.
        pairs = zip(runs[: len(runs) // 2], reversed(runs), strict=False)
        return cls(dim, tuple(tuple(run for run in pair if run[1]) for pair in pairs))

    @cached_property
    def cuts(self) -> "tuple[Shard, ...]":
        """The cut of each dim that is cut, by itself."""
        return (self,) if self.beside is None else (replace(self, beside=None), self.beside)

    def of(self, dim: int | None) -> "Shard | None":
        """The cut of ``dim``; None: it is whole."""
        return next((cut for cut in self.cuts if cut.dim == dim), None)

    def along(self, dim: int) -> "Shard":
        """These runs along another dim."""
        return replace(self, dim=dim)

    def spread(self, dim: int, places: int) -> "Shard":
        """Along another dim, where each of these positions has so many places in a row."""
        runs = (tuple((first * places, n * places) for first, n in own) for own in self.runs)
        return Shard(dim, tuple(runs))

    def among(self, members: Sequence[int]) -> "Shard":
        """The part that these ranks hold together, cut as they hold it."""
        beside = self.beside and self.beside.among(members)
        return replace(self, runs=tuple(self.runs[rank] for rank in members), beside=beside)

    def split(self, parts: int) -> "Shard":
        """Each rank's positions shared by ``parts`` ranks: those of r by r x parts and the next."""
        return replace(self, runs=_split(self.runs, parts))

    def pieces(self, sizes: Callable[[int], Sizes], at: Sequence[int]) -> "Shard":
        """Each rank keeps the piece of its positions that ``at`` says; ``sizes``: those of the
        pieces of so many positions."""
        runs = [
            _cut(own, sizes(sum(length for _, length in own)))[piece]
            for own, piece in zip(self.runs, at, strict=True)
        ]
        return replace(self, runs=tuple(runs))

    def joined(self, parts: int) -> "Shard":
        """``split`` undone: each rank holds what ``parts`` ranks, one after another, hold here."""
        starts = range(0, len(self.runs), parts)
        groups = [self.runs[start : start + parts] for start in starts]
        return replace(
            self, runs=tuple(merged_runs(run for runs in group for run in runs) for group in groups)
        )

    @cached_property
    def sizes(self) -> Sizes:
        """Positions that each rank holds."""
        return tuple(sum(length for _, length in runs) for runs in self.runs)

    @cached_property
    def length(self) -> int:
        """Positions of the whole; those that several ranks hold count once."""
        # Ranks that differ in a second dim hold the same of this one; copied heads are such runs.
        held_once = {run for runs in set(self.runs) for run in runs}
        return sum(length for _, length in held_once)

    @property
    def merged(self) -> tuple[Run, ...]:
        """What all ranks hold together, in ascending order."""
        return merged_runs(sorted(run for of_rank in self.runs for run in of_rank))

    @cached_property
    def is_even(self) -> bool:
        """Whether all ranks hold as many positions."""
        return len(set(self.sizes)) == 1

    def offset(self, rank: int) -> int:
        """First position of the shard of ``rank`` in rank order."""
        return self._offsets[rank]

    @cached_property
    def _offsets(self) -> Sizes:
        return tuple(accumulate(self.sizes, initial=0))

    @property
    def scores(self) -> Sizes:
        """Scores that each rank computes under a causal mask.

        A run attends to all before it, and its own square is computed whole, then masked.
        """
        # Queries first to first + n - 1, each with keys 0 to first + n - 1.
        return tuple(sum(n * (first + n) for first, n in runs) for runs in self.runs)

    def in_words(self, axis: str) -> str:
        """How a causally masked ``axis`` is shared, with any imbalance above 5 %."""
        ratio = self.score_imbalance
        uneven = f"; the busiest has {ratio:.2f} times the mean of scores" if ratio > 1.05 else ""
        return f"each rank holds {self.runs_in_words(axis)}{uneven}"

    def runs_in_words(self, axis: str) -> str:
        """What each rank holds of ``axis``."""
        zigzag = any(len(runs) > 1 for runs in self.runs)
        return f"an early and a late chunk of {axis} (zigzag)" if zigzag else f"one run of {axis}"

    @property
    def score_imbalance(self) -> float:
        """The maximum of ``scores`` over their mean."""
        return max(self.scores) * len(self.scores) / sum(self.scores)  # max / (sum / count)

    @property
    def imbalance(self) -> float:
        """The largest shard over the mean one: how much longer the busiest rank computes."""
        # Of two dims the product: the rank with the larger part of both has both factors.
        return prod(max(cut.sizes) * len(cut.sizes) / sum(cut.sizes) for cut in self.cuts)


Shards = tuple[Shard, ...]
"""How a tensor is cut along several dims at once; none: each rank holds all of it."""


@lru_cache(maxsize=100)
def _split(runs: tuple[tuple[Run, ...], ...], parts: int) -> tuple[tuple[Run, ...], ...]:
    apart = [_cut(own, shard_sizes(sum(n for _, n in own), parts)) for own in runs]
    return tuple(part for parts in apart for part in parts)


def _cut(runs: Sequence[Run], sizes: Sizes) -> list[tuple[Run, ...]]:
    """Runs end to end, cut into parts of these sizes; an empty part is a run of no positions."""
    parts = []
    for begin, size in runs_of(sizes):
        part: list[Run] = []
        at = 0  # where a run begins if all are put end to end
        for first, length in runs:
            low, high = max(at, begin), min(at + length, begin + size)
            if low < high:  # the part and the run overlap
                part.append((first + low - at, high - low))
            at += length
        parts.append(tuple(part) or ((0, 0),))
    return parts


def merged_runs(runs: Iterable[Run]) -> tuple[Run, ...]:
    """Runs in ascending order, those that touch as one; of no positions at all one empty run."""
    merged: list[Run] = []
    for first, length in runs:
        if not length:
            continue
        before, held = merged[-1] if merged else (0, 0)
        if merged and before + held == first:  # it begins where the last one ends
            merged[-1] = (before, held + length)
        else:
            merged.append((first, length))
    return tuple(merged) or ((0, 0),)
