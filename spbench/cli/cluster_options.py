"""Flags and variables of a run on several machines; see docs/clusters.md."""

import os
import re
from collections.abc import Mapping

import click

from spbench.cli import options
from spbench.cli.option_types import Count
from spbench.errors import UNFIT, Failure
from spbench.launch.cluster import PORT, Cluster
from spbench.launch.copies import TASKS, mpi_copies, number
from spbench.launch.interfaces import addresses_of, is_here
from spbench.launch.torchrun import joined_ranks

MAX_PORT = 65535
EXAMPLE = "--nnodes 2 --rdzv-endpoint HOST:29400, with --node-rank 0 on HOST and 1 on the other"

nodes_options = options.together(
    click.option(
        "--nnodes",
        type=Count(1, 1024),
        help="Number of machines, each of which runs this command.  [default: 1, or srun's]",
    ),
    click.option(
        "--node-rank",
        type=Count(0, 1023),
        help="Number of this machine; 0 writes the results.  [default: srun's]",
    ),
    click.option(
        "--rdzv-endpoint",
        metavar="HOST[:PORT]",
        help="Address of node 0.  [default: srun's first node]",
    ),
    options.duration_option("--join-timeout", "300", "How long to wait for all nodes."),
)
"""The flags that ``cluster_of`` takes."""


def cluster_of(
    nnodes: int | None,
    node_rank: int | None,
    rdzv_endpoint: str | None,
    join_timeout: float,
    environ: Mapping[str, str] = os.environ,
) -> Cluster | None:
    """This machine's place among several; None if it is the only one.

    Raises Failure for flags that do not go together, for a node 0 that is not reachable, and for
    one of several copies of a command that mpirun started. A job of several nodes, of which this
    command uses one, is said on stderr.
    """
    is_joined = joined_ranks(environ) is not None
    if not is_joined and (nnodes or 1) == 1 and (why := mpi_copies(environ)) is not None:
        raise Failure(why)
    slurm = None if is_joined else _of_slurm(environ)
    nodes = nnodes or (slurm.nodes if slurm else 1)
    if nodes == 1:
        if nnodes is None and not is_joined:
            _say_unused_nodes(environ)
        for flag, value in (("--node-rank", node_rank), ("--rdzv-endpoint", rdzv_endpoint)):
            if value is not None and nnodes is None:
                raise Failure(f"{flag} {value} needs --nnodes: {EXAMPLE}")
        return None
    if is_joined:
        raise Failure("--nnodes under torchrun, which has started the ranks already; leave it out")
    if rdzv_endpoint is None and slurm is None:
        raise Failure(f"--nnodes {nodes} needs --rdzv-endpoint: {EXAMPLE}")
    if rdzv_endpoint:
        head, port = _endpoint(rdzv_endpoint)
    else:
        head, port = slurm.head, slurm.port  # type: ignore[union-attr]
    if not addresses_of(head):
        raise Failure(f"the name of node 0, {head!r}, does not resolve on this machine", UNFIT)
    node = node_rank if node_rank is not None else slurm.node if slurm else _guess(nodes, head)
    if node >= nodes:
        raise Failure(f"--node-rank {node} of --nnodes {nodes}; use 0 to {nodes - 1}")
    if node == 0 and not is_here(head):
        raise Failure(
            f"node 0 is this machine, but --rdzv-endpoint names {head!r}, which is none of its "
            f"addresses; name this machine, or give another --node-rank",
            UNFIT,
        )
    return Cluster(nodes=nodes, node=node, head=head, port=port, wait_s=join_timeout)


def _say_unused_nodes(environ: Mapping[str, str]) -> None:
    """Outside of srun a batch script runs on the first of its job's nodes alone."""
    nodes = number(environ, "SLURM_JOB_NUM_NODES") or 1
    if nodes > 1 and TASKS not in environ:
        click.echo(
            f"warning: this job has {nodes} nodes, and ranks start on this one alone; "
            f"'srun --ntasks-per-node=1 --cpu-bind=none spbench ...' uses all of them, and "
            f"--nnodes 1 says that one is meant",
            err=True,
        )


def _guess(nodes: int, head: str) -> int:
    if is_here(head):
        return 0
    if nodes == 2:
        return 1
    raise Failure(f"--nnodes {nodes} needs --node-rank on each: 0 on {head}, 1 to {nodes - 1}")


def _endpoint(text: str) -> tuple[str, int]:
    parts = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^:\s]+)(?::(\d{1,9}))?", text, re.ASCII)
    if parts is None:
        works = f"write node-a:{PORT} or [::1]:{PORT}"
        raise Failure(f"--rdzv-endpoint {text} is not HOST or HOST:PORT; {works}")
    port = int(parts[2] or PORT)
    if not 0 < port <= MAX_PORT:
        raise Failure(f"--rdzv-endpoint {text}: there is no port {port}; use 1 to {MAX_PORT}")
    return parts[1].strip("[]"), port


def _of_slurm(environ: Mapping[str, str]) -> Cluster | None:
    """The nodes of the srun step that this process is a task of; None without other tasks."""
    try:
        tasks, nodes = (int(environ[f"SLURM_STEP_NUM_{what}"]) for what in ("TASKS", "NODES"))
        node, hosts = int(environ["SLURM_NODEID"]), environ["SLURM_STEP_NODELIST"]
        job = int(environ.get("SLURM_JOB_ID", "0"))
    except (KeyError, ValueError):
        return None
    if tasks == 1:
        return None
    if tasks != nodes:
        raise Failure(
            f"srun started {tasks} tasks on {nodes} nodes, but spbench starts the ranks itself; "
            f"use srun --ntasks-per-node=1"
        )
    # Jobs that share a node must not share a port.
    return Cluster(nodes=nodes, node=node, head=first_host(hosts), port=PORT + job % 1000)


def first_host(hosts: str) -> str:
    """The first name of Slurm's list: gpu03 of gpu[03-07,11],cpu1."""
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", hosts).partition(",")[0]
