"""Plain gather: before each attention along the sharded axis, K and V are gathered, one by one.

    k, v   (B, T/N, S, Z, D)  --all-gather-->  (B, T, S, Z, D)     f K sent for each
    out    (B, T/N, S, Z, D)     attention of the queries at hand to all keys

Backward is what ``Collectives`` does of itself: a reduce-scatter of dK and one of dV. spbench's own
``kv-gather`` sends one message for both, serves causal masks, and keeps no gathered keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor

from spbench.comm.collectives import Collectives
from spbench.layers.attention import Scores
from spbench.strategies.fixed_axis import FixedAxis
from spbench.workload.block import Attention, Sublayer
from spbench.workload.sharding import Shard
from spbench.workload.traffic import Traffic, Transfer
from spbench.workload.workload import Workload


@final
@dataclass(frozen=True, kw_only=True)
class PlainGather(FixedAxis):
    """One axis stays sharded: the one of fewest bytes, or the option ``shard-axis``."""

    def why_not_along(self, axis: str, workload: Workload, ranks: int) -> str | None:
        along = [each for each in workload.attentions if axis in each.axes and ranks > 1]
        if any(each.causal or each.projection or each.pair_bias for each in along):
            return f"it serves no mask, projection or pair bias along {axis}; shard another axis"
        return super().why_not_along(axis, workload, ranks)

    def sublayer_traffic(
        self, sublayer: Sublayer, workload: Workload, axis: str, ranks: int
    ) -> Traffic:
        if not isinstance(sublayer, Attention) or axis not in sublayer.axes:
            return super().sublayer_traffic(sublayer, workload, axis, ranks)
        sizes = self.held(workload, axis, ranks)
        gather = Transfer.all_gather(workload.key_bytes, sizes)
        scatter = Transfer.reduce_scatter(workload.key_bytes, sizes)
        return [gather, gather], [scatter, scatter]

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, scores: Scores, shard: Shard, comm: Collectives
    ) -> Tensor:
        if shard.dim in scores.dims:
            k, v = comm.all_gather(k, shard), comm.all_gather(v, shard)
        return super().attend(q, k, v, scores, shard, comm)
