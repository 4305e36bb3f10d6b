"""How an axis is cut into shards, one for each rank.

Uneven shards are ordinary: 13 positions on 4 ranks are 4, 3, 3 and 3. Nothing is
padded and nothing is dropped, so every split, gather and prediction goes by these sizes.
"""

from __future__ import annotations

from dataclasses import dataclass

Sizes = tuple[int, ...]


def shard_sizes(length: int, ranks: int) -> Sizes:
    """Positions for each rank, as even as can be, the longer shards first.

    >>> shard_sizes(13, 4)
    (4, 3, 3, 3)
    """
    base, extra = divmod(length, ranks)
    return tuple(base + (rank < extra) for rank in range(ranks))


@dataclass(frozen=True)
class Shard:
    """The tensor dim that is cut, and how many of its positions each rank holds."""

    dim: int
    sizes: Sizes

    @classmethod
    def even(cls, dim: int, length: int, ranks: int) -> Shard:
        return cls(dim, shard_sizes(length, ranks))

    @property
    def length(self) -> int:
        return sum(self.sizes)

    def start(self, rank: int) -> int:
        return sum(self.sizes[:rank])

    @property
    def imbalance(self) -> float:
        """The largest shard over the mean one: how much longer the slowest rank computes."""
        return max(self.sizes) * len(self.sizes) / self.length
