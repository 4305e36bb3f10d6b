"""How an axis is cut into shards, one for each rank.

Uneven shards are ordinary: 13 positions on 4 ranks are 4, 3, 3 and 3. Nothing is
padded and nothing is dropped, so every split, gather and prediction goes by these sizes.

A shard is mostly one run of positions. Under a causal mask the last positions have most
to attend to, so a ring gives each rank an early chunk and a late one (zigzag):

    8 chunks on 4 ranks   0 1 2 3 3 2 1 0
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

Sizes = tuple[int, ...]
Run = tuple[int, int]
"""First position and length."""


def shard_sizes(length: int, ranks: int) -> Sizes:
    """Positions for each rank, as even as can be, the longer shards first.

    >>> shard_sizes(13, 4)
    (4, 3, 3, 3)
    """
    base, extra = divmod(length, ranks)
    return tuple(base + (rank < extra) for rank in range(ranks))


def runs_of(sizes: Sizes) -> tuple[Run, ...]:
    """Runs of these lengths, end to end from 0.

    >>> runs_of((4, 3))
    ((0, 4), (4, 3))
    """
    return tuple((sum(sizes[:i]), size) for i, size in enumerate(sizes))


@dataclass(frozen=True)
class Shard:
    """The tensor dim that is cut, and which of its positions each rank holds.

    ``runs[rank]`` are in ascending order. "Rank order" is the ranks' shards end to end;
    where each has one run, that is the order of the positions.
    """

    dim: int
    runs: tuple[tuple[Run, ...], ...]

    @classmethod
    def of_sizes(cls, dim: int, sizes: Sizes) -> Shard:
        """One run for each rank, end to end."""
        return cls(dim, tuple((run,) for run in runs_of(sizes)))

    @classmethod
    def even(cls, dim: int, length: int, ranks: int) -> Shard:
        return cls.of_sizes(dim, shard_sizes(length, ranks))

    @classmethod
    def causal(cls, dim: int, length: int, ranks: int) -> Shard:
        """The evenest under a mask: zigzag, rank r holding chunks r and 2 N - 1 - r of 2 N.

        Chunks that do not divide may have the longer ones first or last; a length of a few
        positions for each rank may be shared more evenly in single runs.
        """
        chunks = shard_sizes(length, 2 * ranks)
        choices = [_zigzag(dim, sizes) for sizes in (chunks, chunks[::-1])]
        fair = [cut for cut in choices if min(cut.sizes)]
        return min([*fair, cls.even(dim, length, ranks)], key=lambda cut: max(cut.scores))

    def along(self, dim: int) -> Shard:
        """The same shards of another tensor's dim."""
        return replace(self, dim=dim)

    @cached_property
    def sizes(self) -> Sizes:
        """Positions that each rank holds."""
        return tuple(sum(length for _, length in runs) for runs in self.runs)

    @cached_property
    def length(self) -> int:
        return sum(self.sizes)

    def offset(self, rank: int) -> int:
        """Where the shard of ``rank`` begins in rank order."""
        return sum(self.sizes[:rank])

    @property
    def scores(self) -> Sizes:
        """What each rank computes under a causal mask, in products of a query and a key.

        A run sees all before it, and its own square is computed whole before it is masked.
        """
        return tuple(sum(n * (first + n) for first, n in runs) for runs in self.runs)

    def in_words(self, axis: str) -> str:
        """How a masked ``axis`` is shared, and how unevenly if it is."""
        if all(len(runs) == 1 for runs in self.runs):
            how = f"each rank holds one run of {axis}"
        else:
            how = f"each rank holds an early and a late chunk of {axis} (zigzag)"
        most = self.score_imbalance
        uneven = f"; the busiest has {most:.2f} times the mean of scores" if most > 1.05 else ""
        return how + uneven

    @property
    def score_imbalance(self) -> float:
        """The most of ``scores`` over their mean."""
        return max(self.scores) * len(self.runs) / sum(self.scores)

    @property
    def imbalance(self) -> float:
        """The largest shard over the mean one: how much longer the slowest rank computes."""
        return max(self.sizes) * len(self.sizes) / self.length


def _zigzag(dim: int, chunks: Sizes) -> Shard:
    runs = runs_of(chunks)
    pairs = zip(runs[: len(runs) // 2], reversed(runs), strict=False)
    return Shard(dim, tuple(tuple(run for run in pair if run[1]) for pair in pairs))
