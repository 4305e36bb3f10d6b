"""Flags and variables of a run on several machines; see docs/clusters.md."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import click
from click.core import ParameterSource

from spbench.cli import help, options
from spbench.cli.options import Count, refuse_flags
from spbench.errors import UNFIT, Failure
from spbench.launch.cluster import PORT, Cluster
from spbench.launch.copies import TASKS, mpi_copies, number
from spbench.launch.interfaces import addresses_of, is_here
from spbench.launch.launcher import Deadlines
from spbench.launch.torchrun import joined_ranks
from spbench.sweep.devices import choose_device, default_ranks, why_not_here
from spbench.sweep.plan import without_unfit
from spbench.sweep.request import Request, every, from_sweep_file
from spbench.worker.fault_injection import planted_fault
from spbench.workload.case import QUICK, Device, Execution, MeasurementBudget
from spbench.workload.catalogue import (
    find,
    overridden,
    overrides_of,
    refuse_undone,
    with_settings_in_name,
)
from spbench.workload.mesh import CaseMesh
from spbench.workload.sweeps import LAUNCHES
from spbench.workload.workload import Workload
from spbench.workload.yaml_file import short

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


# From the flags of ``run`` and ``check`` to a request: strategies, ranks and workload.

DEFAULT_WORKLOAD = "dsp-720m-small"
MAX_DIGITS = 9
BESIDE_NO_SWEEP = ("strategies", "workload", "settings", "dtype", "meshes")
"""Parameters that choose cells, as a sweep file does."""
CLUSTER = ("nnodes", "node_rank", "rdzv_endpoint", "join_timeout")
SELECTING = (*BESIDE_NO_SWEEP, "gpus", "sweep", "small", "skip_invalid")
AS_GIVEN = ("seed", "peak_tflops", "verbose", "out", "fresh", "adds")
"""Parameters that become fields of the request unchanged."""

selection_options = options.together(
    options.strategy_option,
    options.gpus_option,
    options.mesh_option,
    click.option(
        "-w",
        "--workload",
        default=DEFAULT_WORKLOAD,
        metavar="NAME|FILE",
        shell_complete=help.workloads,
        help="A workload of the catalogue ('spbench list workloads'), or a YAML file.",
    ),
    options.settings_option,
    click.option("--dtype", help="Shorthand for --set dtype=..."),
    click.option(
        "--sweep",
        metavar="NAME|FILE",
        shell_complete=help.sweeps,
        help="A sweep file that lists the cells, in place of -s, -w, --set, --dtype and --mesh; "
        "-g picks ranks.",
    ),
    click.option("--small", is_flag=True, help="With --sweep: small forms of its workloads."),
    click.option(
        "--skip-invalid", is_flag=True, help="Leave out cells that cannot run, and say why."
    ),
)
"""The flags that choose cells; ``request_of`` reads them from the context."""


def request_of(ctx: click.Context) -> Request:
    """The request that these flags make. Raises Failure if they do not go together."""
    flags = ctx.params
    fault = planted_fault()
    starts = not flags.get("dry_run", False)
    device = choose_device(flags["device"], starts=starts)
    of_nodes = {name: flags[name] for name in CLUSTER if name in flags}
    cluster = cluster_of(**of_nodes) if of_nodes else None
    share, quick = flags.get("share", False), flags.get("quick", False)
    if share and cluster is not None:
        raise Failure("--share is one process; leave out --nnodes, or start it without srun")
    nodes = 1 if cluster is None else cluster.nodes
    if flags["sweep"] is not None:
        refuse_flags(
            ctx,
            BESIDE_NO_SWEEP,
            "cannot be given with --sweep, whose file says which cells there are; "
            "leave it out, or give a changed copy of the file",
        )
        ranks = (
            parse_ranks(flags["gpus"], device, share=share or not starts, nodes=nodes)
            if flags["gpus"]
            else ()
        )
        request = from_sweep_file(flags["sweep"], device, small=flags["small"], ranks=ranks)
        options.say_broken()
    else:
        if flags["small"]:
            raise Failure("--small is for --sweep; -w takes small forms by name: dsp-720m-small")
        if ctx.get_parameter_source("workload") is ParameterSource.DEFAULT:
            shared = samples_for(flags["meshes"], flags["settings"])
            flags = {**flags, "settings": [*flags["settings"], *shared]}
        request = _from_flags(flags, device, share=share or not starts, nodes=nodes)
    request = replace(
        request,
        kind="one_gpu_share" if share else "measured",
        execution=_execution_of(flags),
        starts=starts,
        launches=flags["launches"] or (1 if quick else request.launches),
        budget=QUICK if quick else MeasurementBudget(),
        skip_invalid=flags["skip_invalid"] or request.skip_invalid,
        deadlines=Deadlines(
            launch_s=flags["timeout"],
            hang_s=flags["hang_after"],
            sweep_s=flags.get("max_time") or math.inf,
        ),
        cluster=cluster,
        fault=fault,
        **{name: flags[name] for name in AS_GIVEN if name in flags},
    )
    return without_unfit(request) if flags["small"] else request


def samples_for(meshes: Sequence[CaseMesh], settings: Sequence[str]) -> list[str]:
    """Settings by which the workload that runs where none is named has samples for every group
    and stage of the meshes, which stderr says; none where ``settings`` choose them."""
    given = {setting.partition("=")[0].strip() for setting in settings}
    needed = {
        "batch": math.lcm(*(mesh.dp * mesh.pp for mesh in meshes)),
        "guidance": math.lcm(*(mesh.cfg for mesh in meshes)),
    }
    chosen = [f"{name}={n}" for name, n in needed.items() if n > 1 and name not in given]
    if chosen:
        those = f"{DEFAULT_WORKLOAD} with {' and '.join(chosen)}"
        click.echo(f"no workload is named: {those}, for the groups of --mesh", err=True)
    return chosen


def _execution_of(flags: Mapping[str, Any]) -> Execution:
    """How steps run. Raises Failure for two ways at once."""
    execution: Execution = flags.get("execution", "eager")
    if not flags.get("graph", False):
        return execution
    if execution != "eager":
        raise Failure(
            "--compiled and --graph are two ways to run a step, and a row has one; "
            "make two runs, one with each"
        )
    return "graph"


def _from_flags(flags: Mapping[str, Any], device: Device, *, share: bool, nodes: int) -> Request:
    """One workload, every strategy on each number of ranks."""
    settings = [*flags["settings"], *([f"dtype={flags['dtype']}"] if flags["dtype"] else [])]
    strategies = options.strategies_of(flags["strategies"])
    workload = choose_workload(flags["workload"], settings)
    ranks = parse_ranks(flags["gpus"], device, share=share, nodes=nodes)
    return Request(
        title=workload.name,
        combinations=every(workload, strategies, ranks, flags["meshes"]),
        device=device,
        launches=LAUNCHES,
        every_strategy=options.asks_for(flags["strategies"], "all", "vendors"),
    )


def choose_workload(name: str, settings: Sequence[str]) -> Workload:
    """The workload with its settings; its name holds those that have no column in a row. Raises
    WorkloadError, also for a setting that another would undo."""
    overrides = overrides_of(settings)
    refuse_undone(overrides)
    return with_settings_in_name(overridden(find(name), overrides), overrides)


def settings_of(lengths: str | None) -> list[list[str]]:
    """The settings of each length of ``space=1024,4096``; none of None. Raises Failure."""
    if lengths is None:
        return [[]]
    axis, _, numbers = map(str.strip, lengths.partition("="))
    each = list(dict.fromkeys(map(str.strip, numbers.split(","))))
    if not axis or not all(map(str.isdecimal, each)):
        raise Failure(f"--axis {lengths}: write an axis and its lengths, as in space=1024,4096")
    return [[f"axes.{axis}={length}"] for length in each]


def parse_ranks(
    text: str | None, device: Device, *, share: bool = False, nodes: int = 1
) -> list[int]:
    """Numbers of ranks such as ``1,2,4``, each once. Raises Failure for what cannot be started."""
    if text is None:
        return [default_ranks(device, nodes=nodes)]
    counts = rank_counts(text)
    for count in sorted(counts, reverse=True):
        if why_not := why_not_here(count, device, share=share, nodes=nodes):
            raise Failure(f"--gpus {count}: {why_not}")
    return counts


def rank_counts(text: str) -> list[int]:
    """Numbers of ranks such as ``1,2,4``, each once, whether or not they can be started."""
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        if not part.isdecimal() or len(part) > MAX_DIGITS or int(part) < 1:
            raise Failure(f"--gpus {text}: {short(part)} is not a number of ranks; write 1,2,4")
    return list(dict.fromkeys(map(int, parts)))
