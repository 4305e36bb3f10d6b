"""Dynamic Sequence Parallelism (Zhao et al., ICML 2025): shard an axis that is not attended.

Attention along one axis never mixes positions of another. So while a sublayer attends along
one axis, another is sharded, and the sublayer needs no communication. Where the next one
attends along the sharded axis, one all-to-all moves the sharding elsewhere.

    attention over space    (B, T/N, S, H)
        switch              time whole again, space sharded: f M / N sent by each rank
    attention over time     (B, T, S/N, H)

So there is no communication code here: this file is a planner, and the model switches
wherever the layout changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from spbench.strategies.base import Layout, Strategy, switch
from spbench.workload.shards import Shard
from spbench.workload.sublayers import Sublayer
from spbench.workload.workload import Workload

Cost = tuple[float, float]
"""Bytes that the slowest rank sends, then how unevenly the ranks compute."""


@final
@dataclass(frozen=True, kw_only=True)
class DSP(Strategy):
    """The layout of fewest bytes over the whole stack, switching as late as can be."""

    def why_not(self, workload: Workload, ranks: int) -> str | None:
        for sublayer in workload.block:
            if not _free_axes(sublayer, workload, ranks):
                return _no_free_axis(sublayer, workload, ranks)
        return None

    def layout(self, workload: Workload, ranks: int) -> Layout:
        """Dynamic programming from the last sublayer back to the first.

        ``ahead[axis]`` is the least cost of all sublayers from i on, if ``axis`` is sharded
        in sublayer i. With K axes in rotation it finds K/(K-1) switches a round, and none
        after the last attention. On a tie it stays: a switch comes as late as it can.
        """
        stack = workload.stack
        uneven = {
            axis: Shard.even(0, length, ranks).imbalance - 1
            for axis, length in workload.axes.items()
        }
        moves = {
            (a, b, first): _passes(workload, first) * float(max(switch(workload, a, b, ranks).sent))
            for a in workload.axes
            for b in workload.axes
            for first in (True, False)
            if a != b
        }
        ahead: dict[str, Cost] = dict.fromkeys(workload.axes, (0.0, 0.0))
        follow: list[dict[str, str]] = []
        for i in reversed(range(len(stack))):
            first = (i + 1) % len(workload.block) == 0
            here: dict[str, Cost] = {}
            chosen: dict[str, str] = {}
            for axis in _free_axes(stack[i], workload, ranks):
                options = {
                    after: (sent + moves.get((axis, after, first), 0.0), waited + uneven[axis])
                    for after, (sent, waited) in ahead.items()
                }
                here[axis], _, chosen[axis] = min(
                    (cost, after != axis, after) for after, cost in options.items()
                )
            ahead = here
            follow.insert(0, chosen)
        plan = [min(ahead, key=ahead.__getitem__)]
        for chosen in follow[:-1]:
            plan.append(chosen[plan[-1]])
        return tuple(plan)


def _passes(workload: Workload, first: bool) -> int:
    """How often a switch is paid: forward, backward, and recomputed unless it starts a block."""
    if workload.mode == "forward":
        return 1
    return 3 if workload.checkpointing == "full" and not first else 2


def _free_axes(sublayer: Sublayer, workload: Workload, ranks: int) -> list[str]:
    """Axes that may be sharded while ``sublayer`` runs: long enough, and not attended."""
    axes = workload.axes.items()
    return [a for a, length in axes if a not in sublayer.attended and length >= ranks]


def _no_free_axis(sublayer: Sublayer, workload: Workload, ranks: int) -> str:
    others = {
        axis: length for axis, length in workload.axes.items() if axis not in sublayer.attended
    }
    if not others:
        return "it shards an axis that is not attended, and needs a second sequence axis"
    axis = max(others, key=others.__getitem__)
    attended = " and ".join(sublayer.attended)
    while_ = f" while {attended} is attended" if attended else ""
    return (
        f"no axis has {ranks} positions to shard{while_}: the longest is {axis} with "
        f"{others[axis]}; use 1 to {others[axis]} ranks"
    )
