"""USP (Fang and Zhao, 2024): heads shared out among neighbours, another exchange across them.

In a group of U neighbours the sharded axis becomes whole and heads are shared out, as in Ulysses.
Across groups, ranks with the same heads attend as in a ring, a K/V gather or Attention2D.

    q, k, v   (B, S/N, Z, D)   --switch in the group-->   (B, U S/N, Z/U, D)
    attention of Z/U heads across N/U groups
    out       (B, U S/N, Z/U, D)   --switch-->   (B, S/N, Z, D)         (U - 1) / U of M / N sent
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from math import inf
from typing import cast, final

from torch import Tensor

from spbench.comm.collectives import Collectives
from spbench.layers.attention import Scores
from spbench.layers.head_parallel import attend_by_heads, traffic_by_heads
from spbench.layers.head_shares import share_heads
from spbench.strategies.fixed_axis import AUTO, FixedAxis
from spbench.strategies.refusals import grouped_why_not, groups_why_not, heads_why_not, size_misfit
from spbench.strategies.registry import ACROSS, load
from spbench.workload.block import Attention, Sublayer
from spbench.workload.mesh import Members, Mesh
from spbench.workload.sharding import Shard
from spbench.workload.traffic import Traffic, along, waited_bytes
from spbench.workload.workload import Workload


@final
@dataclass(frozen=True, kw_only=True)
class USP(FixedAxis):
    """With groups of ``ulysses`` ranks, by default of as many as send the fewest bytes."""

    ulysses: str = AUTO
    across: str = ACROSS[0]
    rows: str = AUTO

    @cached_property
    def other(self) -> FixedAxis:
        """The strategy across groups."""
        rows = f":rows={self.rows}" if self.rows != AUTO else ""
        return cast("FixedAxis", load(f"{self.across}:shard-axis={self.shard_axis}{rows}"))

    def misfit(self, workload: Workload) -> str | None:
        if self.across not in ACROSS:
            return f"across={self.across} is not known; it may be {', '.join(ACROSS)}"
        return size_misfit(ulysses=self.ulysses) or self.other.misfit(workload)

    def why_not(self, workload: Workload, ranks: int) -> str | None:
        unfit = groups_why_not(ranks, ulysses=self.ulysses)
        if not unfit and self.ulysses != AUTO:
            size = int(self.ulysses)
            unfit = heads_why_not(workload, size) or self.other.why_not(workload, ranks // size)
        return unfit or super().why_not(workload, ranks)

    def why_not_along(self, axis: str, workload: Workload, ranks: int) -> str | None:
        unfit = grouped_why_not(axis, workload) or self.other.why_not_along(axis, workload, 1)
        return super().why_not_along(axis, workload, ranks) or unfit

    def mesh(self, workload: Workload, ranks: int) -> dict[str, int]:
        size = self._group_size(workload, ranks)
        across = self.other.mesh(workload, ranks // size)
        return {**(across if len(across) > 1 else {self.across: ranks // size}), "heads": size}

    def _group_size(self, workload: Workload, ranks: int) -> int:
        if self.ulysses != AUTO:
            return int(self.ulysses)
        return _cheapest(self, workload.model_dump_json(by_alias=True), ranks)

    def shard(self, workload: Workload, axis: str, ranks: int) -> Shard:
        size = self._group_size(workload, ranks)
        return self.other.shard(workload, axis, ranks // size).split(size)

    def text_shard(self, workload: Workload, ranks: int) -> Shard:
        size = self._group_size(workload, ranks)
        return self.other.text_shard(workload, ranks // size).split(size)

    def notes(self, workload: Workload, ranks: int) -> str:
        return self.other.notes(workload, ranks // self._group_size(workload, ranks))

    def sublayer_traffic(
        self, sublayer: Sublayer, workload: Workload, axis: str, ranks: int
    ) -> Traffic:
        if not isinstance(sublayer, Attention) or axis not in sublayer.attended:
            return super().sublayer_traffic(sublayer, workload, axis, ranks)
        mesh, held = Mesh.of(self.mesh(workload, ranks)), self.held(workload, axis, ranks)
        size = mesh.size_of("heads")
        shares = share_heads(workload.heads, workload.key_heads, size)

        def in_group(members: Members) -> Traffic:
            return traffic_by_heads(sublayer, workload, axis, tuple(held[at] for at in members))

        def across(members: Members) -> Traffic:
            place = members[0] % size
            heads = {"heads": shares.queries[place], "kv_heads": shares.matched_size(place)}
            part = workload.model_copy(update=heads | {"head_dim": workload.head_size})
            return self.other.sublayer_traffic(sublayer, part, axis, ranks // size)

        (there, out), (back, home) = along("heads", mesh.groups("heads"), in_group)
        forward, backward = along(self.across, mesh.groups(*mesh.without("heads")), across)
        return [there, *forward, out], [back, *backward, home]

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, scores: Scores, shard: Shard, comm: Collectives
    ) -> Tensor:
        if shard.dim not in scores.dims or comm.size == 1:
            return super().attend(q, k, v, scores, shard, comm)
        group, others = comm.along("heads"), comm.along(*comm.mesh.without("heads"))
        held = shard.among(comm.mesh.members(comm.rank, "heads"))
        across = partial(self.other.attend, shard=shard.joined(group.size), comm=others)
        return attend_by_heads(q, k, v, scores, held, group, across)


@lru_cache(maxsize=100)
def _cheapest(strategy: USP, workload_json: str, ranks: int) -> int:
    """The ranks of a group for the fewest bytes in a step; of several such the most."""
    workload = Workload.model_validate_json(workload_json)

    def sent(size: int) -> tuple[float, int]:
        fixed = replace(strategy, ulysses=str(size))
        fits = fixed.why_not(workload, ranks) is None
        return waited_bytes(fixed.traffic(workload, ranks)) if fits else inf, -size

    return min((size for size in range(1, ranks + 1) if ranks % size == 0), key=sent)
