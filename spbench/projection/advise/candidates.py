"""Which strategies, with which options, are weighed for some ranks, and which run would decide
between those that are not told apart.

Each strategy as it is, and where it has groups of ranks of a size that one may choose, with each
size that divides the ranks, and with each strategy that may attend across them.

Several nodes each run the command that decides: ranks of one machine would meet over its memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import Field, fields
from math import prod
from typing import Any

from spbench.errors import Failure
from spbench.launch.cluster import PORT
from spbench.projection.costmodel.hardware import NETWORK, Cluster
from spbench.strategies.registry import ACROSS, in_mesh, load
from spbench.text import quoted
from spbench.workload.mesh import NO_MESH, CaseMesh
from spbench.workload.workload import Workload

COMPILED = "--compiled"
"""The flag of commands that are about compiled models."""
LAUNCHES = 5
"""Launches of each strategy in the command that would decide."""
NODE = "node"
"""The level that joins a node's devices."""


def candidates(
    names: Sequence[str], workload: Workload, ranks: int, mesh: CaseMesh = NO_MESH
) -> list[str]:
    """The named strategies and their variants inside of a mesh, without it; of several with the
    same groups and layout the first. A name that has options already stands for itself alone."""
    found: dict[tuple[object, ...], str] = {}
    own_ranks = ranks // prod(size for _, size in mesh.axes)
    for name in names:
        for variant in [name] if ":" in name else [name, *variants(name, workload, own_ranks)]:
            strategy = in_mesh(variant, mesh)
            groups: object = None  # declined, in one sentence
            if not strategy.declines(workload, ranks):
                plan = strategy.on(strategy.flattened(workload), ranks)
                groups = plan.mesh, plan.layout
            found.setdefault((name, groups), variant)
    return list(found.values())


def variants(name: str, workload: Workload, ranks: int) -> Iterator[str]:
    """``name`` with each size of its groups but one and all, and each strategy across them."""
    options = fields(load(name))
    attends = [_written(option) for option in options if option.default in ACROSS]
    others = [f":{option}={other}" for option in attends for other in ACROSS] or [""]
    divisors = [size for size in range(2, ranks) if ranks % size == 0]
    sized = [o for o in options if divisors and _takes_sizes(name, o, workload, divisors[0])]
    for option in sized[:1]:
        for size in divisors:
            yield from (f"{name}:{_written(option)}={size}{other}" for other in others)


def _written(option: Field[Any]) -> str:
    return option.name.replace("_", "-")


def _takes_sizes(name: str, option: Field[Any], workload: Workload, size: int) -> bool:
    if isinstance(option.default, bool):
        return False
    try:
        strategy = load(f"{name}:{_written(option)}={size}")
        return strategy.misfit(strategy.flattened(workload)) is None
    except Failure:
        return False


def nodes(cluster: Cluster, ranks: int) -> int | None:
    """Hosts that so many ranks take; None: several, and the cluster does not say how many."""
    if ranks == 1:
        return 1
    if cluster.link == NETWORK:
        return min(cluster.nodes, ranks) or None
    of_node = (level.ranks for level in cluster.levels if level.name == NODE)
    inside = cluster.host_ranks or next(of_node, None)
    for inner, outer in zip(cluster.levels, cluster.levels[1:], strict=False):
        if outer.name == NETWORK or outer.ranks is None:
            inside = inside or inner.ranks
    return -(-ranks // inside) if inside else 1


def what_would_decide(
    names: Sequence[str],
    ranks: int,
    cluster: Cluster,
    asked: Sequence[str],
    settings: Mapping[str, Sequence[str]] | None = None,
) -> str:
    """The command, and where it is to run; as ``decisive_command`` has it."""
    command = decisive_command(names, ranks, cluster, asked, settings)
    where = "each node of " * (nodes(cluster, ranks) != 1) + cluster.name
    return f"what would decide, on {where}: {command}"


def decisive_command(
    names: Sequence[str],
    ranks: int,
    cluster: Cluster,
    asked: Sequence[str],
    settings: Mapping[str, Sequence[str]] | None = None,
) -> str:
    """The command that would decide, where what the reader has to fill in is in capitals.

    A run has the same meshes and settings for all its strategies: where these differ, runs follow
    each other into one folder.

    Parameters
    ----------
    names
        Strategies, each with its mesh.
    ranks, cluster
        What they run on.
    asked
        Words that name the workload, and ``--compiled`` of compiled models.
    settings
        By a name, what its workload has beside that, each ``key=value``.
    """
    by_run: dict[tuple[CaseMesh, tuple[str, ...]], list[str]] = {}
    for name in names:
        strategy, mesh = CaseMesh.split(name)
        by_run.setdefault((mesh, tuple((settings or {}).get(name, ()))), []).append(strategy)
    device = ["--device", "cpu"] if cluster.device.kind == "cpu" else []
    where: list[object] = ["-g", ranks, *device]
    if (count := nodes(cluster, ranks)) != 1:
        where += ["--nnodes", count or "N", "--node-rank", "I", "--rdzv-endpoint", f"HOST:{PORT}"]
    where += ["--launches", LAUNCHES, *(["--out", "DIR", "--add"] if len(by_run) > 1 else [])]
    commands = []
    for (mesh, beside), strategies in by_run.items():
        words = [*asked, *(word for each in beside for word in ("--set", each))]
        words += ["-s", ",".join(strategies)]
        words += ["--mesh", str(mesh).replace(" ", ",")] if mesh.axes else []
        commands.append(quoted("spbench", "run", *words, *where))
    return " && ".join(commands)
