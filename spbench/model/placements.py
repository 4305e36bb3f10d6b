"""How the activation lies on the ranks in each sublayer, and the switches that make it lie so."""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache, partial
from itertools import pairwise
from typing import NamedTuple

from torch import Tensor

from spbench.comm.collectives import Collectives
from spbench.strategies.base import Strategy
from spbench.workload.mesh import ALL
from spbench.workload.sharding import Shard
from spbench.workload.traffic import Hop
from spbench.workload.workload import Workload


class Switch(NamedTuple):
    """One all-to-all over a group of ranks: a dim becomes whole, another one is cut."""

    comm: Collectives
    before: Shard
    after: Shard
    outermost: int
    """The dim of the two that is outermost in the message."""


class Placement(NamedTuple):
    """How an activation lies on the ranks in a sublayer, and how it comes to lie so."""

    shard: Shard
    switches: tuple[Switch, ...]


def hops_along(workload: Workload, strategy: Strategy, ranks: int) -> Iterator[Sequence[Hop]]:
    """The all-to-alls to the shard of each sublayer from that of the one before it."""
    known = cache(partial(strategy.hops, workload, ranks=ranks))
    axes = strategy.layout(workload, ranks)
    for before, after in pairwise((axes[0], *axes)):
        hops = known(before, after)
        assert hops is not None, "a layout switches only where there is a way"
        yield hops


def placements(
    layout: Sequence[Shard], hops: Iterable[Sequence[Hop]], comm: Collectives
) -> list[Placement]:
    """How the activation lies in each sublayer: at first with the sharded dim outermost in memory.

    That dim stays outermost as long as each switch is from it or to it. A switch between two others
    makes the dim that becomes whole the outermost. Either costs one copy.
    """
    places, outermost = [], layout[0].dim
    for shard, each in zip(layout, hops, strict=True):
        switches = []
        for hop in each:
            if outermost not in (hop.before.dim, hop.after.dim):
                outermost = hop.before.dim
            if hop.over == ALL:
                switches.append(Switch(comm, hop.before, hop.after, outermost))
                continue
            members = comm.mesh.members(comm.rank, hop.over)
            before, after = (cut.among(members) for cut in (hop.before, hop.after))
            switches.append(Switch(comm.along(hop.over), before, after, outermost))
        places.append(Placement(shard, tuple(switches)))
    return places


def switched(x: Tensor, place: Placement) -> Tensor:
    """``x`` as ``place`` has it; itself where the shard stays."""
    for comm, before, after, outermost in place.switches:
        (x,) = comm.switch(x, before=before, after=after, outermost=outermost)
    return x
