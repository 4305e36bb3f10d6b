"""Shards of an axis that are even by work, and not by positions.

All sublayers have as much to do for each position, but attention along the axis: there a position
counts the keys that it sees, late ones of a long document many, those of short documents few.

    documents, causal      . : | . : : : : | . |      more keys from . to |
    by positions           0 0 0 0 0 1 1 1 1 1
    by work                0 0 0 0 0 0 1 1 1 1

Operations are those that kernels run in a step: of a pair of query and key in forward a product of
queries' size and one of results', in backward five, since scores are computed once more. What comes
behind the last block is left out: so blocks of a kind are cut alike, however many there are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import final

from spbench.workload.block import Attention
from spbench.workload.fields import OF_AXES
from spbench.workload.flops import pairs_seen, score_flops, sublayer_flops
from spbench.workload.mask import Runs, held
from spbench.workload.sharding import Shard, Sizes
from spbench.workload.workload import Workload

EVEN = 1.01
"""Work of the busiest rank over the mean, up to which shards are as even as each other."""


@final
@dataclass(frozen=True)
class PositionWork:
    """Operations of all blocks in a step, by position of ``axis``."""

    workload: Workload
    axis: str

    @cached_property
    def uneven(self) -> dict[Attention, int]:
        """The attentions along the axis in which positions see unequally many keys, and how often
        each occurs."""
        along = [x for x in self.workload.attentions if self.axis in x.axes]
        uneven = [x for x in along if x.causal or self.workload.mask(x)]
        return {x: n for x, n in Counter(self.workload.stack).items() if x in uneven}

    @cached_property
    def beside(self) -> int:
        """All that is not in those attentions, of all positions together."""
        work = self.workload
        own = Counter(x for x in work.stack if work.strand_of(x) == OF_AXES)  # none of streams
        every = sum(n * sublayer_flops(x, work) for x, n in own.items())
        scores = sum(n * score_flops(x, work) for x, n in self.uneven.items())
        # Backward is twice the forward, and runs a forward once more where it recomputes.
        return (every - scores) * (
            (3 if work.mode == "train" else 1) + (1 if work.recomputes else 0)
        )

    def attention(self, runs: Runs) -> int:
        """What queries at these positions take in those attentions."""
        work, total = self.workload, 0
        for each, times in self.uneven.items():
            rows = self._joined(runs, each)
            total += times * (work.tokens // work.length(each)) * pairs_seen(each, work, rows)
        return 2 * work.samples * work.heads * self._numbers_of_a_pair * total

    def _joined(self, runs: Runs, attention: Attention) -> Runs:
        """Positions of the axis in the sequence that an attention goes along."""
        axes = [axis for axis in self.workload.axes if axis in attention.axes]
        if len(axes) == 1:
            return runs
        lengths = tuple(self.workload.axes[axis] for axis in axes)
        (rows,) = held(Shard(0, (runs,)), lengths, axes.index(self.axis))
        return rows

    @property
    def _numbers_of_a_pair(self) -> int:
        """Over which the products of a head go, for a query and a key."""
        work = self.workload
        forward = work.head_size + work.value_size
        if work.mode == "forward":
            return forward
        again = forward if work.recomputes or work.recomputes_attention else 0
        return forward + again + 3 * work.head_size + 2 * work.value_size

    def of(self, runs: Runs) -> int:
        """For these positions, times the positions of the axis: a whole number."""
        length = self.workload.axes[self.axis]
        return self.beside * sum(n for _, n in runs) + length * self.attention(runs)

    def imbalance(self, shard: Shard) -> float:
        """The busiest rank's operations over the mean."""
        return _imbalance(self.of, shard)

    def imbalance_of_attention(self, shard: Shard) -> float:
        """The busiest rank's operations of attention over the mean."""
        return _imbalance(self.attention, shard)

    def pieces(self, count: int) -> Sizes:
        """Lengths of so many pieces of as much work each, of a position at least."""
        length = self.workload.axes[self.axis]
        total, ends = self.of(((0, length),)), [0]

        def away(end: int) -> int:
            """How far the work before ``end`` is from what it should be, times ``count``."""
            return self.of(((0, end),)) * count - total * piece

        for piece in range(1, count):
            # Work grows with positions: of the two beside the wanted end the nearer one.
            end = bisect_left(range(length), 0, lo=ends[-1] + 1, key=away)
            nearer = end if abs(away(end)) < abs(away(end - 1)) else end - 1
            ends.append(max(ends[-1] + 1, min(nearer, length - (count - piece))))
        return tuple(end - begin for begin, end in pairwise([*ends, length]))


def _imbalance(work_of: Callable[[Runs], int], shard: Shard) -> float:
    works = [work_of(runs) for runs in shard.runs]
    return max(works) * len(works) / sum(works)


@lru_cache(maxsize=32)
def by_work(workload: Workload, axis: str, by_positions: Shard) -> Shard:
    """How ``axis`` is cut so that ranks have as much to do, beside the cut by positions.

    One run for each rank, or an early and a late one (zigzag): of those that are even the one whose
    fullest rank holds the fewest positions.
    """
    work, dim, ranks = PositionWork(workload, axis), by_positions.dim, len(by_positions.runs)
    if ranks == 1 or not work.uneven:
        return by_positions
    choices = [by_positions, Shard.of_sizes(dim, work.pieces(ranks))]
    if workload.axes[axis] >= 2 * ranks and workload.grows_along(axis):
        choices.append(Shard.zigzag(dim, work.pieces(2 * ranks)))
    return min(choices, key=lambda shard: (max(EVEN, work.imbalance(shard)), max(shard.sizes)))
