"""USP (Fang and Zhao, 2024): heads shared out among neighbours, another exchange across them.

In a group of U neighbours the sharded axis becomes whole and heads are shared out, as in Ulysses.
Across groups, ranks with the same heads attend as in a ring, a K/V gather or Attention2D.

    q, k, v   (B, S/N, Z, D)   --switch in the group-->   (B, U S/N, Z/U, D)
    out       (B, U S/N, Z/U, D)   --switch-->   (B, S/N, Z, D)         (U - 1) / U of M / N sent
"""

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from math import inf
from typing import ClassVar, cast, final

from torch import Tensor

from spbench.comm.collectives import Collectives
from spbench.layers.attention import Scores
from spbench.layers.heads import (
    HEADS,
    all_heads,
    attend_by_heads,
    of_first,
    share_heads,
    traffic_by_heads,
    traffic_in_groups,
)
from spbench.strategies import refusals
from spbench.strategies.base import Strategy
from spbench.strategies.fixed_axis import AUTO, FixedAxis, Known, padding_in_words
from spbench.strategies.registry import ACROSS, load
from spbench.workload.block import Attention, Sublayer
from spbench.workload.mesh import Mesh
from spbench.workload.sharding import Shard, shard_sizes
from spbench.workload.traffic import Traffic, in_a_step, waited_bytes
from spbench.workload.workload import Workload


@final
@dataclass(frozen=True, kw_only=True)
class USP(FixedAxis):
    """Groups of ``ulysses`` ranks, by default for the fewest bytes; ``padded``: of equal heads."""

    forms: ClassVar[tuple[str, ...]] = ("ulysses=2", "padded")
    ulysses: str = AUTO
    across: str = ACROSS[0]
    rows: str = AUTO
    padded: bool = False

    @cached_property
    def other(self) -> FixedAxis:
        """The strategy across groups."""
        rows = f":rows={self.rows}" if self.rows != AUTO else ""
        return cast("FixedAxis", load(f"{self.across}:shard-axis={self.shard_axis}{rows}"))

    def misfit(self, workload: Workload) -> str | None:
        unfit = refusals.across_misfit(self.across, ACROSS)
        return unfit or refusals.size_misfit(ulysses=self.ulysses) or self.other.misfit(workload)

    def why_not(self, workload: Workload, ranks: int) -> str | None:
        unfit = refusals.groups_why_not(ranks, ulysses=self.ulysses)
        if not unfit and self.ulysses != AUTO:
            size = int(self.ulysses)
            unfit = refusals.heads_why_not(workload, size)
            unfit = unfit or self.other.why_not(workload, ranks // size)
        return unfit or super().why_not(workload, ranks)

    def why_not_along(self, axis: str, workload: Workload, ranks: int) -> str | None:
        unfit = refusals.grouped_why_not(axis, workload)
        unfit = unfit or self.other.why_not_along(axis, workload, 1)
        return super().why_not_along(axis, workload, ranks) or unfit

    def mesh(self, workload: Workload, ranks: int) -> dict[str, int]:
        chosen = self.settled(workload, ranks)
        size = int(chosen.ulysses)
        across = chosen.other.mesh(workload, ranks // size)
        return {**(across if len(across) > 1 else {self.across: ranks // size}), HEADS: size}

    def settled(self, workload: Workload, ranks: int) -> "USP":
        if self.ulysses == AUTO:
            return _cheapest(self, Known.of(workload), ranks)
        return self._with_rows(workload, ranks)

    def _with_rows(self, workload: Workload, ranks: int) -> "USP":
        """With the rows that the strategy across groups has for the heads of a group's first rank,
        which has the most."""
        if self.rows != AUTO:
            return self
        rows = self.other.settled_rows(*self._part(workload, ranks // int(self.ulysses)))
        return self if rows == AUTO else replace(self, rows=rows)

    def _part(self, workload: Workload, groups: int) -> tuple[Workload, int]:
        """What the strategy across ``groups`` is asked about."""
        return of_first(workload, int(self.ulysses), self.padded), groups

    def alternatives(self, workload: Workload, ranks: int) -> "list[USP]":
        """Groups of every size that it can run in, the largest first."""
        if self.ulysses != AUTO:
            return []
        sizes = (size for size in range(ranks, 0, -1) if ranks % size == 0)
        written_out = (replace(self, ulysses=str(size)) for size in sizes)
        fit = (each for each in written_out if each.why_not(workload, ranks) is None)
        return [each._with_rows(workload, ranks) for each in fit]

    def unevenness(self, workload: Workload, ranks: int) -> float:
        size = self._group_size(workload, ranks)
        padded = all_heads(workload, size, self.padded)
        most = share_heads(padded.heads, padded.key_heads, size).queries[0]
        return most * size / workload.heads  # 5 heads on 2 ranks: 3 where the mean is 2.5

    def least_cost(self, workload: Workload, ranks: int) -> float:
        """Bytes of a step in the first group alone, times ``unevenness``, with the groups' size
        written out. No choice costs less than that, and it takes no look at all ranks."""
        size = int(self.ulysses)
        part, groups = self._part(workload, ranks // size)
        padded = all_heads(workload, size, self.padded)

        def along(axis: str) -> float:
            total = 0.0
            for place, times in Counter(workload.places).items():
                attention = place.sublayer
                if not isinstance(attention, Attention) or axis not in attention.attended:
                    continue
                # Text is shared out by itself: what a rank has of both is not as even as the sum.
                held = self.held(workload, axis, ranks)[:size] if workload.text else None
                whole = self.other.held(workload, axis, groups)[0]
                inside = traffic_by_heads(attention, padded, axis, held or shard_sizes(whole, size))
                across = self.other.sublayer_traffic(attention, part, axis, groups)
                (there, out), (back, home) = inside
                own = [there, *across[0], out], [back, *across[1], home]
                total += times * waited_bytes(
                    in_a_step(workload, place, own, ([], []), self.ends_in_transfer)
                )
            return total

        axes = self.choices(workload.kinds[0], workload, ranks)
        return min(map(along, axes)) * self.unevenness(workload, ranks)

    def others(self, workload: Workload, ranks: int) -> list[tuple[Strategy, Workload, int]]:
        chosen = self.settled(workload, ranks)
        return [(self.other, *chosen._part(workload, ranks // int(chosen.ulysses)))]

    def has_own_queries(self, workload: Workload, ranks: int) -> bool:
        return self._group_size(workload, ranks) < ranks

    def _group_size(self, workload: Workload, ranks: int) -> int:
        return int(self.settled(workload, ranks).ulysses)

    def shard(self, workload: Workload, axis: str, ranks: int) -> Shard:
        size = self._group_size(workload, ranks)
        return self.other.shard(workload, axis, ranks // size).split(size)

    def text_shard(self, workload: Workload, ranks: int) -> Shard:
        size = self._group_size(workload, ranks)
        return self.other.text_shard(workload, ranks // size).split(size)

    def notes(self, workload: Workload, ranks: int) -> str:
        padding = padding_in_words(workload, size := self._group_size(workload, ranks), self.padded)
        return padding or self.other.notes(workload, ranks // size)

    def sublayer_traffic(
        self, sublayer: Sublayer, workload: Workload, axis: str, ranks: int
    ) -> Traffic:
        if not isinstance(sublayer, Attention) or axis not in sublayer.attended:
            return super().sublayer_traffic(sublayer, workload, axis, ranks)
        mesh, held = Mesh.of(self.mesh(workload, ranks)), self.held(workload, axis, ranks)
        other = self.settled(workload, ranks).other  # the same rows, whatever heads a rank has
        across = partial(other.sublayer_traffic, ranks=ranks // mesh.size_of(HEADS))
        return traffic_in_groups(sublayer, workload, axis, held, mesh, across, self.padded)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, scores: Scores, shard: Shard, comm: Collectives
    ) -> Tensor:
        if shard.dim not in scores.dims or comm.size == 1:
            return super().attend(q, k, v, scores, shard, comm)
        group, others = comm.along(HEADS), comm.along(*comm.mesh.without(HEADS))
        held = shard.among(comm.mesh.members(comm.rank, HEADS))
        across = partial(self.other.attend, shard=shard.joined(group.size), comm=others)
        return attend_by_heads(q, k, v, scores, held, group, across, self.padded)


@lru_cache(maxsize=100)
def _cheapest(strategy: USP, known: Known, ranks: int) -> USP:
    """With groups for the fewest bytes of a step, times the unevenness of heads; of several such
    the largest groups. Heads that do not divide cost a rank more time than any link gives back."""

    def cost(each: USP) -> float:
        sent = waited_bytes(each.traffic(known.workload, ranks))
        return sent * each.unevenness(known.workload, ranks)

    every = strategy.alternatives(known.workload, ranks)
    least = [each.least_cost(known.workload, ranks) for each in every]
    best, chosen = inf, 0
    # Whoever costs least at best is looked at first: then most need no look at all ranks.
    for i in sorted(range(len(every)), key=least.__getitem__):
        if least[i] > best:
            break
        # Of equals the first, whose groups are the largest.
        best, chosen = min((best, chosen), (cost(every[i]), i))
    return every[chosen]
