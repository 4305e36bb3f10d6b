"""Which level of a cluster's links a run of nccl-tests is of: the innermost that joins its ranks.

A rank's position is its host's, times the devices of a host, plus its device, so that ranks 0 and 4
of a machine with two sockets of four meet at the level of the machine and not of a socket. What a
level cannot know is refused: a host that has more devices than the cluster's, half-filled hosts
beside each other, links within a host where a cluster has none.
"""

from dataclasses import dataclass
from typing import final

from spbench.errors import Failure
from spbench.projection.constants import Level
from spbench.projection.hardware import NETWORK, Cluster
from spbench.projection.message_cost import crossing
from spbench.projection.nccl_run import Run
from spbench.text import counted


@final
@dataclass(frozen=True, kw_only=True)
class PlacedRun:
    """A run, and the level that joins its ranks."""

    run: Run
    group: tuple[int, ...]
    """The ranks' positions in the cluster."""
    at: int
    """The level's number; that behind the last is a network around all of them."""
    block: int
    """Ranks that the level before joins."""

    @property
    def shares(self) -> tuple[float, float]:
        """Parts of what ranks send that leave a block: of the busiest rank, of all of a block."""
        return self.crossing(self.block)

    def crossing(self, block: int) -> tuple[float, float]:
        """Such parts for blocks of another size."""
        return crossing((self.group,), self.run.op, block)


def placed(run: Run, cluster: Cluster) -> PlacedRun:
    """The run at its level. Raises Failure where no level can know what it timed."""
    group = _positions(run, cluster)
    block = 1
    for at, level in enumerate(cluster.levels):
        if level.ranks is None or len({rank // level.ranks for rank in group}) == 1:
            _check_within(run, cluster, level)
            return PlacedRun(run=run, group=group, at=at, block=block)
        block = level.ranks
    return PlacedRun(run=run, group=group, at=len(cluster.levels), block=block)


def _positions(run: Run, cluster: Cluster) -> tuple[int, ...]:
    """Where the ranks are, in the order in which they send to each other. Raises Failure for hosts
    that are not the cluster's."""
    of_host = cluster.ranks_of_host
    hosts = run.hosts
    on_host = [sum(seat.host == host for seat in run.seats) for host in hosts]
    has = f"a host of {cluster.name} has {counted(of_host, 'rank')}"
    for host, ranks in zip(hosts, on_host, strict=True):
        if ranks > of_host:
            raise Failure(
                f"{run.place}: {counted(ranks, 'rank')} on host {host!r}, and {has}: are these "
                f"several hosts of one name, or is --onto another kind of machine?"
            )
    if len(hosts) > 1 and set(on_host) != {of_host}:
        uneven = ", ".join(map(str, on_host))
        raise Failure(
            f"{run.place}: {uneven} ranks on {counted(len(hosts), 'host')}, and {has}: what fewer "
            f"send between hosts does not tell the rate of all; start {of_host} on each"
        )
    if len(hosts) > 1 and [seat.host for seat in run.seats] != [
        host for host in hosts for _ in range(of_host)
    ]:
        raise Failure(
            f"{run.place}: its ranks are dealt out over hosts in turn, and spbench's are not; "
            f"start those of a host one after the other (mpirun --map-by ppr:{of_host}:node, "
            f"srun -m block)"
        )
    if len(hosts) > 1:
        return tuple(range(run.ranks))
    beyond = [seat.device for seat in run.seats if seat.device >= of_host]
    if beyond:
        raise Failure(f"{run.place}: a rank on device {beyond[0]}, and {has}, from 0 on")
    return tuple(seat.device for seat in run.seats)


def _check_within(run: Run, cluster: Cluster, level: Level) -> None:
    """Raises Failure for links within a host where the cluster's are those between hosts."""
    is_within = len(run.hosts) == 1
    if is_within and NETWORK in (cluster.link, level.name):
        raise Failure(
            f"{run.place}: {counted(run.ranks, 'rank')} on one host, and level {level.name!r} of "
            f"{cluster.name} joins hosts: it has no links within one to replace"
        )
