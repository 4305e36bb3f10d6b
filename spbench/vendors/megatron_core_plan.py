"""How a step goes whose projections are Megatron-core's layers: what each sends, and where."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import final

from torch import Tensor, nn

from spbench.comm.collectives import Collectives
from spbench.layers.attention import Scores, attend_whole
from spbench.layers.linear import ColumnCut, LinearSpec, RowCut
from spbench.strategies.fixed_axis import FixedPlan
from spbench.vendors.megatron_core_layers import columns, rows
from spbench.workload.block import Sublayer
from spbench.workload.sharding import Shard
from spbench.workload.traffic import Traffic, Transfer, streams


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class CorePlan(FixedPlan):
    """All ranks cut the weights."""

    cuts_weights: bool = True
    ends_in_transfer: bool = True

    @property
    def sends_itself(self) -> bool:
        return self.ranks > 1

    def inside(self, shard: Shard) -> Shard | None:
        return None

    def sublayer_traffic(self, sublayer: Sublayer, axis: str) -> Traffic:
        through = streams(sublayer, self.workload, axis, self.shard(axis).sizes, self.text.sizes)
        gathers = [Transfer.all_gather(*stream) for stream in through]
        scatters = [Transfer.reduce_scatter(*stream) for stream in through]
        return gathers + scatters, gathers + gathers + scatters

    def sent_by_attend(self, sublayer: Sublayer, axis: str) -> list[Transfer]:
        return []  # attention of a rank's heads is local

    def linear_in(self, spec: LinearSpec, comm: Collectives) -> nn.Module:
        if comm.size == 1:  # which its layers refuse
            return super().linear_in(spec, comm)
        return ColumnCut(spec, comm, partial(columns, comm=comm))

    def linear_out(self, spec: LinearSpec, comm: Collectives) -> nn.Module:
        if comm.size == 1:
            return super().linear_out(spec, comm)
        return RowCut(spec, comm, partial(rows, comm=comm))

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, scores: Scores, shard: Shard, comm: Collectives
    ) -> Tensor:
        return attend_whole(q, k, v, scores)
