"""The rank of a case that has the most to do."""

from __future__ import annotations

from collections import Counter

from spbench.strategies.base import Strategy
from spbench.workload.block import Attention, Sublayer
from spbench.workload.workload import Workload


def busiest(workload: Workload, strategy: Strategy, ranks: int) -> int:
    """The rank with the most positions over all sublayers, and scores of masked attentions; of
    equals the first, which has the most heads where these do not divide."""
    strategy, workload, ranks = strategy.in_a_group(workload, ranks)
    axes = strategy.layout(workload, ranks)
    loads = [0.0] * ranks
    kinds = Counter(
        (axis, _is_masked_along(axis, place.sublayer))
        for place, axis in zip(workload.places, axes, strict=True)
    )
    for (axis, is_masked), times in kinds.items():
        shares = [strategy.held(workload, axis, ranks)]
        if is_masked:
            shares.append(strategy.shard(workload, axis, ranks).scores)
        for share in shares:
            whole = sum(share)
            for rank, part in enumerate(share):
                loads[rank] += times * part / whole
    return loads.index(max(loads))


def _is_masked_along(axis: str, sublayer: Sublayer) -> bool:
    return isinstance(sublayer, Attention) and sublayer.causal and axis in sublayer.attended
