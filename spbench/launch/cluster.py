"""One machine's place among several that are started together, and who the others are.

Every node runs the same command. Node 0 keeps the results and says what is started; the others
follow. Ranks fill one node before the next, so that small groups stay inside a node.
"""

import hashlib
import itertools
import math
import platform
import socket
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, Field

import spbench
from spbench.launch.interfaces import address_towards
from spbench.launch.launcher import LauncherError
from spbench.results.machine import package_version

PORT = 29400


class Cluster(BaseModel, frozen=True):
    """This node, and where node 0 is."""

    nodes: int
    node: int
    head: str
    port: int
    wait_s: float = 300.0
    """How long to wait for all nodes to come."""
    silence_s: float = 30.0
    """Seconds of silence after which a node counts as lost, unless a launch may hang for less."""
    gpus: int = 0
    """Visible GPUs of this node."""
    cases_digest: str = ""
    """Equal on all nodes if they were given the same cases."""

    @property
    def is_head(self) -> bool:
        return self.node == 0


class Member(BaseModel):
    """A node that has come, and what must be the same on all of them."""

    node: int
    host: str
    address: str = ""
    """The address from which it reaches node 0."""
    nonce: str = Field(default_factory=lambda: uuid.uuid4().hex)
    """Tells two machines of one name apart."""
    gpus: int = 0
    versions: dict[str, str]

    @property
    def name(self) -> str:
        return f"node {self.node} ({self.host})"

    @classmethod
    def of_this_machine(cls, cluster: Cluster) -> "Member":
        return cls(
            node=cluster.node,
            host=socket.gethostname(),
            address=address_towards(cluster.head, cluster.port) or "",
            gpus=cluster.gpus,
            versions=versions_here() | {"the cases": cluster.cases_digest},
        )


class Roster(BaseModel):
    """All nodes in order, or why they cannot work together."""

    members: list[Member] = []
    why_not: str = ""

    @property
    def hosts(self) -> list[str]:
        return [member.host for member in self.members]


def roster_of(cluster: Cluster, came: Sequence[Member]) -> Roster:
    """The roster of those that came in time."""
    # Two that claim one number are told apart before: the second gives up.
    by_number = {member.node: member for member in came}
    missing = [node for node in range(cluster.nodes) if node not in by_number]
    if missing:
        numbers = ", ".join(map(str, missing))
        names = f"node {numbers}" if len(missing) == 1 else f"nodes {numbers}"
        hosts = ", ".join(f"{member.node} ({member.host})" for member in by_number.values())
        why_not = (
            f"{names} of {cluster.nodes} did not come within {cluster.wait_s:g} s; there: {hosts}. "
            f"Start the same command on every node, and see that {cluster.head}:{cluster.port} "
            f"can be reached from it"
        )
        return Roster(why_not=why_not)
    members = [by_number[node] for node in range(cluster.nodes)]
    why_not = difference([(member.name, member.versions) for member in members])
    return Roster(why_not=why_not) if why_not else Roster(members=members)


def versions_here() -> dict[str, str]:
    """What must be the same wherever ranks of one launch run."""
    versions = {name: package_version(name) for name in ("spbench", "torch")}
    # The third number of a Python is a correction: 3.11.4 and 3.11.9 go together.
    versions |= {"python": ".".join(platform.python_version_tuple()[:2])}
    return versions | {"code of spbench": source_digest(Path(spbench.__file__).parent)}


def difference(named_versions: Sequence[tuple[str, Mapping[str, str]]]) -> str:
    """The first difference from the first of them, in a sentence; blank if there is none."""
    first, expected = named_versions[0]
    for name, versions in named_versions[1:]:
        for package, version in expected.items():
            other = versions.get(package, "")
            if other != version:
                return (
                    f"{name} has {package} {other or 'none'}, {first} has {version or 'none'}; "
                    f"install the same everywhere, and give the same command"
                )
    return ""


def ranks_per_node(members: Sequence[Member], ranks: int, *, on_gpus: bool) -> int:
    """How many ranks each node takes: equal shares, or as many as the fewest GPUs of a node.
    Raises LauncherError if there are too few GPUs."""
    if not on_gpus:
        return math.ceil(ranks / len(members))
    least = min(members, key=lambda member: member.gpus)
    if least.gpus * len(members) < ranks:
        raise LauncherError(
            f"{least.name} has {least.gpus} visible GPUs, too few for {ranks} ranks on "
            f"{len(members)} nodes with as many each; use fewer ranks, or nodes that are alike"
        )
    return least.gpus


def spread(ranks: int, per_node: int, nodes: int) -> list[int]:
    """Ranks on each node that takes part: one is full before the next gets any. 6 ranks, 4 a node,
    on 3 nodes are 4 and 2; the third takes no part."""
    # What is left when the nodes before are full: of 6 ranks, 4 a node, 6, 2, -2 and so 4, 2, 0.
    counts = [min(per_node, max(0, ranks - node * per_node)) for node in range(nodes)]
    return [count for count in counts if count]


def placement(counts: Sequence[int], hosts: Sequence[str]) -> str:
    """Which ranks are on which host, as in "node-a 0-3, node-b 4-7"."""
    parts, first = [], 0
    for count, host in zip(counts, hosts, strict=False):
        parts.append(f"{host} {first}" if count == 1 else f"{host} {first}-{first + count - 1}")
        first += count
    return ", ".join(parts)


def placement_of(hosts: Sequence[str]) -> str:
    """``placement`` from the host of each rank; ranks of one host need not follow each other."""
    runs = [(host, len([*ranks])) for host, ranks in itertools.groupby(hosts)]
    return placement([count for _, count in runs], [host for host, _ in runs])


def source_digest(folder: Path) -> str:
    """Equal for equal code."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(str(path.relative_to(folder)).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
