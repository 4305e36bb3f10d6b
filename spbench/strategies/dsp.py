"""Dynamic Sequence Parallelism (Zhao et al., ICML 2025): shard an axis that is not attended.

Attention along one axis never mixes positions of another. So while a sublayer attends along
one axis, another is sharded, and the sublayer needs no communication. Where the next one
attends along the sharded axis, one all-to-all moves the sharding elsewhere.

    attention over space    (B, T/N, S, H)
        switch              time whole again, space sharded: f M / N sent by each rank
    attention over time     (B, T, S/N, H)

So there is no communication code here: this file is a planner, and the model switches
wherever the layout changes. Attention over all axes joined leaves none to shard: among other
attentions its heads are shared out (``layers/head_parallel.py``), at its true cost in the plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations
from typing import final

from torch import Tensor

from spbench.comm.collectives import Collectives
from spbench.layers.attention import Scores
from spbench.layers.head_parallel import attend_by_heads, traffic_by_heads
from spbench.strategies.base import Layout, Strategy
from spbench.strategies.refusals import heads_why_not, nothing_to_switch, too_short
from spbench.workload.block import Attention, Sublayer
from spbench.workload.sharding import Shard
from spbench.workload.traffic import Traffic, bytes_in_a_step, switch
from spbench.workload.workload import Workload

Cost = tuple[float, float]
"""Bytes that ranks wait for (of each transfer's busiest rank), then imbalance of compute."""


@final
@dataclass(frozen=True, kw_only=True)
class DSP(Strategy):
    """The layout of fewest bytes over the whole stack, switching as late as possible."""

    def why_not(self, workload: Workload, ranks: int) -> str | None:
        joint = [each for each in workload.attentions if _joins_all(each, workload)]
        if joint and len(joint) == len(workload.attentions):
            return nothing_to_switch(workload)
        for sublayer in workload.kinds:
            if not self.choices(sublayer, workload, ranks):
                return too_short(sublayer, workload, ranks)
        return heads_why_not(workload, ranks) if joint else None

    def notes(self, workload: Workload, ranks: int) -> str:
        if not any(_joins_all(each, workload) for each in workload.attentions):
            return ""
        return "attention over all axes joined leaves none to shard: its heads are shared out"

    def layout(self, workload: Workload, ranks: int) -> Layout:
        """Dynamic programming from the last sublayer back to the first.

        ``ahead[axis]`` is the least cost of all sublayers from one on, if ``axis`` is sharded
        in that one. With K axes in rotation it finds K/(K-1) switches a round, and none
        after the last attention. On a tie the axis stays, so switches come late.
        """
        moves = _moves(workload, ranks)
        inside = {each: self._inside(each, workload, ranks) for each in workload.kinds}
        ahead: dict[str, Cost] = dict.fromkeys(workload.axes, (0.0, 0.0))
        follow: list[dict[str, str]] = []
        for place in reversed(workload.places):
            into = place.is_last  # the switch behind it starts a block
            costs: dict[str, Cost] = {}
            chosen: dict[str, str] = {}
            for axis, (sent, uneven) in inside[place.sublayer].items():
                options = {
                    after: (sent + later + moves[axis, after, into], uneven + waited)
                    for after, (later, waited) in ahead.items()
                }
                costs[axis], _, chosen[axis] = min(
                    (cost, after != axis, after) for after, cost in options.items()
                )
            ahead = costs
            follow.append(chosen)
        plan = [min(ahead, key=ahead.__getitem__)]
        for chosen in follow[:0:-1]:
            plan.append(chosen[plan[-1]])
        return tuple(plan)

    def choices(self, sublayer: Sublayer, workload: Workload, ranks: int) -> list[str]:
        """Axes that are long enough and not attended; where all are attended, all long enough."""
        free = [a for a in workload.axes if a not in sublayer.attended] or list(workload.axes)
        return [axis for axis in free if workload.axes[axis] >= ranks]

    def _inside(self, sublayer: Sublayer, workload: Workload, ranks: int) -> dict[str, Cost]:
        """Cost of ``sublayer`` without switches, for each axis that may be sharded."""
        return {
            axis: (
                bytes_in_a_step(workload, *self.sublayer_traffic(sublayer, workload, axis, ranks)),
                Shard.even(0, workload.axes[axis], ranks).imbalance - 1,
            )
            for axis in self.choices(sublayer, workload, ranks)
        }

    def sublayer_traffic(
        self, sublayer: Sublayer, workload: Workload, axis: str, ranks: int
    ) -> Traffic:
        if isinstance(sublayer, Attention) and axis in sublayer.axes:
            held = self.held(workload, axis, ranks)
            return traffic_by_heads(sublayer, workload, axis, held)
        return super().sublayer_traffic(sublayer, workload, axis, ranks)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, scores: Scores, shard: Shard, comm: Collectives
    ) -> Tensor:
        if shard.dim in scores.dims:
            return attend_by_heads(q, k, v, scores, shard, comm)
        return super().attend(q, k, v, scores, shard, comm)


def _joins_all(attention: Attention, workload: Workload) -> bool:
    return set(attention.axes) == set(workload.axes)


def _moves(workload: Workload, ranks: int) -> dict[tuple[str, str, bool], float]:
    """Bytes of a switch from axis to axis in a step; a switch into a block is not recomputed."""
    sent = {(a, b): [switch(workload, a, b, ranks)] for a, b in permutations(workload.axes, 2)}
    moves = {(axis, axis, into): 0.0 for axis in workload.axes for into in (True, False)}
    for (a, b), there in sent.items():
        for into in (True, False):
            moves[a, b, into] = bytes_in_a_step(workload, there, sent[b, a], repeated=not into)
    return moves
