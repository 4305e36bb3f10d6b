"""Plain gather: before each attention along the sharded axis, K and V are gathered, one by one.

    k, v   (B, T/N, S, Z, D)  --all-gather-->  (B, T, S, Z, D)     f K sent for each
    out    (B, T/N, S, Z, D)     attention of the queries at hand to all keys

Backward is what ``Collectives`` does of itself: a reduce-scatter of dK and one of dV. spbench's own
``kv-gather`` sends one message for both, serves causal masks, and keeps no gathered keys.
"""

from spbench.strategies.fixed_axis import FixedAxis, FixedPlan
from spbench.workload.block import Attention
from spbench.workload.traffic import Transfer


class GatherPlan(FixedPlan):
    """One axis stays sharded: the one of fewest bytes, or the option ``shard-axis``."""

    def sublayer_traffic(self, sublayer, axis):
        if not isinstance(sublayer, Attention) or axis not in sublayer.attended:
            return super().sublayer_traffic(sublayer, axis)
        K, sizes = self.workload.key_bytes, self.held(axis)
        gather, scatter = Transfer.all_gather(K, sizes), Transfer.reduce_scatter(K, sizes)
        return [gather, gather], [scatter, scatter]

    def attend(self, q, k, v, scores, shard, comm):
        if shard.dim in scores.dims:
            k, v = comm.all_gather(k, shard), comm.all_gather(v, shard)
        return super().attend(q, k, v, scores, shard, comm)


class PlainGather(FixedAxis):
    """The plan, and what it does not serve."""

    plan = GatherPlan

    def why_not_along(self, axis, workload, ranks):
        along = [each for each in workload.attentions if axis in each.axes and ranks > 1]
        if any(each.causal or each.projection or each.pair_bias for each in along):
            return f"it serves no mask, projection or pair bias along {axis}; shard another axis"
        return super().why_not_along(axis, workload, ranks)
