"""Which heads each rank computes with, when heads are shared out.

Heads need not divide: 4 on 3 ranks are 2, 1, 1. With grouped queries a rank gets whole groups
as long as there are enough of them; beyond that several ranks get a copy of the same key head.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from spbench.workload.shards import Sizes, runs_of, shard_sizes


@dataclass(frozen=True, kw_only=True)
class HeadShares:
    """How many query heads and which key heads each rank computes with."""

    queries: Sizes
    keys: tuple[tuple[int, ...], ...]
    """The key head of each rank's, once or in several ranks."""
    group: int
    """Query heads for each key head."""

    @property
    def key_sizes(self) -> Sizes:
        return tuple(len(heads) for heads in self.keys)

    def spread(self, x: Tensor) -> Tensor:
        """Key heads in the order of the ranks, repeated where several ranks need them."""
        wanted = [head for heads in self.keys for head in heads]
        return _heads(x, wanted) if len(wanted) > x.shape[-2] else x

    def matched(self, x: Tensor, rank: int) -> Tensor:
        """Key heads of ``rank``, so that its query heads find theirs by even groups."""
        first = sum(self.queries[:rank])
        count, held = self.queries[rank], self.keys[rank]
        wanted = [held.index((first + i) // self.group) for i in range(count)]
        even = count % len(held) == 0 and all(
            at == i * len(held) // count for i, at in enumerate(wanted)
        )
        return x if even else _heads(x, wanted)


def _heads(x: Tensor, wanted: list[int]) -> Tensor:
    return x.index_select(-2, torch.tensor(wanted, device=x.device))


@cache
def share_heads(heads: int, key_heads: int, ranks: int) -> HeadShares:
    """Whole groups where there are enough, else query heads as even as can be."""
    group = heads // key_heads
    if key_heads >= ranks:
        groups = runs_of(shard_sizes(key_heads, ranks))
        return HeadShares(
            queries=tuple(count * group for _, count in groups),
            keys=tuple(tuple(range(first, first + count)) for first, count in groups),
            group=group,
        )
    queries = shard_sizes(heads, ranks)
    return HeadShares(
        queries=queries,
        keys=tuple(
            tuple(range(first // group, (first + count - 1) // group + 1))
            for first, count in runs_of(queries)
        ),
        group=group,
    )
