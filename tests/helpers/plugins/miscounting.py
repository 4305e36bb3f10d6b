"""Strategies from outside that send what they do not count, or count what they do not send.

Their results are right and their counters as predicted: the gate passes them.
The kernel's counters alone show it.
"""

from __future__ import annotations

from fractions import Fraction

from torch import Tensor

from spbench.comm.collectives import Collectives
from spbench.layers.attention import Scores
from spbench.strategies.ulysses import Ulysses, UlyssesPlan
from spbench.workload.block import Attention, Sublayer
from spbench.workload.sharding import Shard
from spbench.workload.traffic import Traffic, Transfer


class SmugglesPlan(UlyssesPlan):
    """Sums every q, and counts nothing of it."""

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, scores: Scores, shard: Shard, comm: Collectives
    ) -> Tensor:
        comm.transport._all_reduce(q.detach().clone()).wait()
        return super().attend(q, k, v, scores, shard, comm)


class Smuggles(Ulysses):
    plan = SmugglesPlan


class ClaimsPlan(UlyssesPlan):
    """Predicts and counts a gather of every q that never happens."""

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, scores: Scores, shard: Shard, comm: Collectives
    ) -> Tensor:
        comm.transport._count("all_gather", (comm.size - 1) * q.nbytes)
        return super().attend(q, k, v, scores, shard, comm)

    def sublayer_traffic(self, sublayer: Sublayer, axis: str) -> Traffic:
        forward, backward = super().sublayer_traffic(sublayer, axis)
        if not isinstance(sublayer, Attention):
            return forward, backward
        sizes = self.shard(axis).sizes
        whole = Fraction((self.ranks - 1) * self.workload.activation_bytes, sum(sizes))
        claimed = Transfer(op="all_gather", sent=tuple(whole * held for held in sizes))
        return [*forward, claimed], backward


class Claims(Ulysses):
    plan = ClaimsPlan
