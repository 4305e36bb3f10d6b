"""The heads that each rank computes with, when heads are shared out.

Heads need not divide: 4 on 3 ranks are 2, 1, 1. With grouped queries a rank gets whole groups
where they divide as evenly as queries would; else several ranks get a copy of a key head.
"""

from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate

import torch
from torch import Tensor

from spbench.workload.sharding import Sizes, runs_of, shard_sizes
from spbench.workload.workload import Workload


@dataclass(frozen=True, kw_only=True)
class HeadShares:
    """The query heads and the key heads that each rank computes with."""

    queries: Sizes
    """Number of query heads of each rank."""
    keys: tuple[range, ...]
    """Key heads of each rank, in order; several ranks may have copies of one."""
    group: int
    """Query heads for each key head."""

    @property
    def key_sizes(self) -> Sizes:
        return tuple(len(heads) for heads in self.keys)

    def spread(self, x: Tensor) -> Tensor:
        """Key heads in the order of the ranks, repeated where several ranks need them."""
        if sum(self.key_sizes) == x.shape[-2]:
            return x
        return torch.cat([x.narrow(-2, heads[0], len(heads)) for heads in self.keys], -2)

    def matched(self, x: Tensor, rank: int) -> Tensor:
        """Key heads of ``rank``, repeated so that each serves equally many query heads."""
        users = [self._users_of(head, rank) for head in self.keys[rank]]
        if len(set(users)) == 1:
            return x
        heads = zip(x.split(1, -2), users, strict=True)
        return torch.cat([head.expand(*head.shape[:-2], n, -1) for head, n in heads], -2)

    def matched_size(self, rank: int) -> int:
        """Number of key heads that ``matched`` gives."""
        heads = self.keys[rank]
        if self.group == 1:
            return len(heads)
        ends = [self._users_of(head, rank) for head in (heads[0], heads[-1])]
        between = [self.group] if len(heads) > 2 else []
        return len(heads) if len({*ends, *between}) == 1 else self.queries[rank]

    def _users_of(self, head: int, rank: int) -> int:
        """Query heads of ``rank`` that a key head serves."""
        first, last = self._starts[rank], self._starts[rank + 1]
        return min((head + 1) * self.group, last) - max(head * self.group, first)

    @cached_property
    def _starts(self) -> Sizes:
        return tuple(accumulate(self.queries, initial=0))


@cache
def share_groups(key_heads: int, group: int, ranks: int) -> Sizes:
    """Query heads for each rank by whole groups, as even as can be."""
    return tuple(count * group for count in shard_sizes(key_heads, ranks))


def padded_heads(heads: int, key_heads: int, ranks: int) -> tuple[int, int]:
    """Query heads and key heads with as many more, of zeros, as let every rank have equally many.

    Nothing is added where queries divide already; else key heads, with all queries of each.

    >>> padded_heads(14, 14, 4)
    (16, 16)
    """
    if heads % ranks == 0:
        return heads, key_heads
    keys = -(-key_heads // ranks) * ranks
    return keys * (heads // key_heads), keys


def all_heads(workload: Workload, ranks: int, pads: bool) -> Workload:
    """A workload with all the heads that ``ranks`` ranks compute, those of zeros too."""
    if not pads:
        return workload
    heads, keys = padded_heads(workload.heads, workload.key_heads, ranks)
    sizes = {"heads": heads, "kv_heads": keys, "head_dim": workload.head_size}
    return workload.model_copy(update=sizes)


@cache
def share_heads(heads: int, key_heads: int, ranks: int) -> HeadShares:
    """Shares of whole groups where those are as even as can be, else of single query heads."""
    group = heads // key_heads
    queries, groups = shard_sizes(heads, ranks), share_groups(key_heads, group, ranks)
    if key_heads >= ranks and max(groups) == max(queries):
        queries = groups
    return HeadShares(
        queries=queries,
        keys=tuple(
            range(first // group, (first + count - 1) // group + 1)
            for first, count in runs_of(queries)
        ),
        group=group,
    )
