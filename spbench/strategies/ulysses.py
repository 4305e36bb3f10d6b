"""DeepSpeed-Ulysses (Jacobs et al., 2023): swap the sharded axis for sharded heads.

One axis stays sharded. Where a sublayer attends along it, one all-to-all carries q, k and v
together: the axis becomes whole and the heads are shared out; a second one brings the result
back. Attention along any other axis is local and silent.

    q, k, v   (B, T/N, S, Z, D)   --switch-->   (B, T, S, Z/N, D)
    out       (B, T, S, Z/N, D)   --switch-->   (B, T/N, S, Z, D)

Each of these four tensors sends f M / N. Heads need not divide: 4 on 3 ranks are 2, 1, 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor

from spbench.comm.collectives import Collectives
from spbench.comm.transfer import Transfer
from spbench.strategies.base import Traffic
from spbench.strategies.embedded import Embedded, heads_why_not
from spbench.strategies.kernel import attend_whole
from spbench.workload.shards import Shard, shard_sizes
from spbench.workload.sublayers import Attention, Sublayer
from spbench.workload.workload import Workload


@final
@dataclass(frozen=True, kw_only=True)
class Ulysses(Embedded):
    """``every_attention`` communicates in every attention, as a paper's baseline did."""

    every_attention: bool = False

    def why_not(self, workload: Workload, ranks: int) -> str | None:
        return heads_why_not(workload, ranks) or super().why_not(workload, ranks)

    def sublayer_traffic(
        self, sublayer: Sublayer, workload: Workload, axis: str, ranks: int
    ) -> Traffic:
        if not isinstance(sublayer, Attention):
            return [], []
        if axis not in sublayer.attended and not self.every_attention:
            return [], []
        M = workload.activation_bytes
        positions = shard_sizes(workload.axes[axis], ranks)
        heads = shard_sizes(workload.heads, ranks)
        to_heads = Transfer.all_to_all(3 * M, positions, heads)
        to_positions = Transfer.all_to_all(M, heads, positions)
        back_to_positions = Transfer.all_to_all(3 * M, heads, positions)
        back_to_heads = Transfer.all_to_all(M, positions, heads)
        return [to_heads, to_positions], [back_to_heads, back_to_positions]

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, along: int, shard: Shard, comm: Collectives
    ) -> Tensor:
        if along != shard.dim and not self.every_attention:
            return attend_whole(q, k, v, along)
        heads = Shard.even(q.ndim - 2, q.shape[-2], comm.size)
        q, k, v = comm.switch(q, k, v, before=shard, after=heads)
        (out,) = comm.switch(attend_whole(q, k, v, along), before=heads, after=shard)
        return out
