"""Seconds of a collective over the groups of an axis, all of them at once.

    latency + hops + max over levels of (what a rank sends over it / its rate,
                                         what a block sends over it / what the block shares)

What crosses a level depends on the pattern. In an all-to-all each rank sends to all others, so a
rank of a group over two sockets sends half or more to the other one; around a ring only a rank
whose successor lies in another block sends anything there. Groups of other axes cross at the same
time: rings through every second GPU cross twice. Where a level has no switch, a rank has a link to
each other one, and a group of few uses few of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import final

from spbench.errors import Failure
from spbench.projection.costmodel.constants import Doubt, Level
from spbench.projection.costmodel.hardware import Cluster
from spbench.projection.dryrun.work import Message
from spbench.workload.catalogue import init_cluster
from spbench.workload.mesh import Groups, Mesh
from spbench.workload.traffic import Op


@final
@dataclass(frozen=True, kw_only=True)
class MessageCost:
    """Seconds of one collective, where it is slowest, and the doubt about what bounds it."""

    seconds: float
    level: str
    doubt: Doubt
    hidden: float | None = None
    """Part that kernels behind it hide of what they could; None: ``interval.OVERLAP``."""
    hides: float = 1.0
    """Part of those kernels' time in which it moves."""


def host_calls(op: Op) -> int:
    """Calls of the host for one collective: a shift is a send and a receive."""
    return 2 if op == "p2p" else 1


def why_not_on(cluster: Cluster, ranks: int) -> str | None:
    """Why a cluster is too small for so many ranks, and what would work; None if it is not."""
    most = cluster.most_ranks
    if most is None or ranks <= most:
        return None
    return (
        f"{cluster.name} has {most} ranks, not {ranks}; give --gpus up to {most}, or calibrate "
        f"more: 'spbench calibrate -g {ranks}', on several nodes with --nnodes, or by logs of the "
        f"network between them: {init_cluster(cluster.name)}"
    )


def message_cost(message: Message, mesh: Mesh, cluster: Cluster, own: Sequence[str]) -> MessageCost:
    """Seconds of one collective, over the axes that it names, as ``ring+heads``; over all axes of
    its strategy, ``own``, if it names none of them. Raises Failure where the cluster has too few
    ranks."""
    if unfit := why_not_on(cluster, mesh.size):
        raise Failure(unfit)
    named = message.axis.split("+")
    groups = mesh.groups(*(named if {*named} <= {*own} else own))
    sent, costs, block, outermost = float(message.sent_bytes), [], 1, cluster.levels[0]
    for level in cluster.levels:
        of_rank, of_block = crossing(groups, message.op, block)
        if of_rank:
            outermost = level
            part = _links_used(level, message.op, len(groups[0]))
            costs += _at(level, message.op, sent / part, of_rank, of_block)
        if level.ranks is None:
            break
        block = level.ranks
    rates = outermost.collectives[message.op]
    latency = rates.latency_s(len(groups[0]), mesh.size)
    of_latency = Doubt.of(f"{outermost.name}.{message.op}.latency_us", rates.latency_us)
    if not costs:
        return MessageCost(seconds=0.0, level=outermost.name, doubt=of_latency)
    slowest = max(costs, key=lambda each: each.seconds)
    return MessageCost(
        seconds=latency + slowest.seconds,
        level=slowest.level,
        doubt=of_latency if latency > slowest.seconds else slowest.doubt,
        hidden=rates.hidden,
        hides=rates.hides,
    )


def _links_used(level: Level, op: Op, of_group: int) -> float:
    """Part of a rank's links that a group of so many ranks uses: all, where a switch joins them. A
    shift goes over one link whatever the group, and its rate is that of one."""
    if not level.to_each or level.ranks is None or op == "p2p":
        return 1.0
    return (min(of_group, level.ranks) - 1) / (level.ranks - 1)


def _at(level: Level, op: Op, sent: float, of_rank: float, of_block: float) -> list[MessageCost]:
    """Times at one level: of the busiest rank, and of the busiest block where ranks share."""
    rates = level.collectives[op]
    own = of_rank * rates.seconds(sent / 1e6)
    of_rate = Doubt.of(f"{level.name}.{op}.gb_per_s", rates.gb_per_s)
    costs = [MessageCost(seconds=own, level=level.name, doubt=of_rate)]
    if (shared := level.shared_gb_per_s) is not None:
        left = level.scattered.value if level.scattered and op == "all_to_all" else 1.0
        together = sent * of_block / (shared.value * left * 1e9)
        of_shared = Doubt.of(f"{level.name}.shared_gb_per_s", shared)
        costs.append(MessageCost(seconds=together, level=level.name, doubt=of_shared))
    return costs


@lru_cache(maxsize=1000)
def crossing(groups: Groups, op: Op, block: int) -> tuple[float, float]:
    """Shares of what a rank sends that leave its block: of the busiest rank, and the sum over the
    busiest block's ranks."""
    of_ranks: dict[int, float] = {}
    for group in groups:
        blocks = [rank // block for rank in group]
        for i, rank in enumerate(group):
            if len(group) == 1:
                of_ranks[rank] = 0.0
            elif op == "all_to_all":
                of_ranks[rank] = (len(group) - blocks.count(blocks[i])) / (len(group) - 1)
            else:
                of_ranks[rank] = float(blocks[(i + 1) % len(group)] != blocks[i])
    of_blocks: dict[int, float] = {}
    for rank, share in of_ranks.items():
        of_blocks[rank // block] = of_blocks.get(rank // block, 0.0) + share
    return max(of_ranks.values()), max(of_blocks.values())
