"""Runs the cells that were asked for, shows them as they finish, keeps them in a folder."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from spbench.errors import UNFIT, Failure
from spbench.launch.cluster import Cluster, placement, placement_of, spread
from spbench.launch.gpu_memory import GpuMemory
from spbench.launch.launcher import Deadlines, Launcher, LauncherError
from spbench.launch.local import LocalLauncher
from spbench.launch.process import AgentProcess
from spbench.launch.torchrun import JoinedLauncher, joined_ranks
from spbench.report.progress import Screen
from spbench.results.environment import environment
from spbench.results.reading import ResultsError, read_rows
from spbench.results.record import Record
from spbench.results.run_json import read_run
from spbench.results.store import Store
from spbench.sweep.devices import visible_gpus
from spbench.sweep.output_folder import Destination, new_session, resolved
from spbench.sweep.peak_flops import known_peak
from spbench.sweep.plan import job_of
from spbench.sweep.sweep import Sweep, still_to_do
from spbench.worker.fault_injection import Fault
from spbench.workload.case import Cell


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The cells of one invocation, and how they are to be run."""

    cells: Sequence[Cell]
    destination: Destination
    deadlines: Deadlines = field(default_factory=Deadlines)
    cluster: Cluster | None = None
    peak_tflops: float | None = None
    reference: str | None = None
    fault: Fault | None = None
    verbose: bool = False


def measure(plan: Plan) -> list[Record] | None:
    """Runs what is left to do, and shows it. None on a rank or node that is not the first."""
    if plan.cluster is not None and not plan.cluster.is_head:
        _follow(_here(plan, plan.cluster))
        return None
    if os.environ.get("RANK", "0") == "0":
        plan.destination.check()  # before other ranks wait for this one
    one_of_many = _joined(plan) if joined_ranks() is not None else None
    if one_of_many is not None and not one_of_many.is_first:
        one_of_many.follow()
        return None
    try:
        with Store(plan.destination.folder) as store:
            return _sweep(plan, store, one_of_many or _local(plan))
    except (ResultsError, LauncherError) as error:
        raise Failure(str(error), UNFIT) from None


def _follow(cluster: Cluster) -> None:
    """What every node but the first does: starts ranks when node 0 says so, until it is over."""
    where = f"{cluster.head}:{cluster.port}"
    click.echo(f"node {cluster.node} of {cluster.nodes}, following node 0 at {where}", err=True)
    with tempfile.TemporaryDirectory(prefix="spbench-node-") as folder:
        words = (cluster.model_dump_json(), folder)
        agent = AgentProcess(Path(folder) / "launcher.log", {}, words)
        agent.start()
        try:
            code = agent.wait()
            if code != 0:
                raise Failure(agent.last_words(), UNFIT)
        finally:
            agent.end(now=True)
    click.echo(f"node {cluster.node}: node 0 is done", err=True)


def _here(plan: Plan, cluster: Cluster) -> Cluster:
    """With what the other nodes are to know of this one."""
    keys = json.dumps([(cell.case.key, cell.case.launch) for cell in plan.cells])
    more = {
        "silence_s": min(cluster.silence_s, plan.deadlines.hang_s),
        "asked": hashlib.sha256(keys.encode()).hexdigest()[:12],
        "gpus": len(visible_gpus()),
    }
    return cluster.model_copy(update=more)


def _joined(plan: Plan) -> JoinedLauncher:
    jobs = [job_of(cell.case, plan.deadlines) for cell in plan.cells]
    wanted = {name: value for job in jobs for name, value in job.environment.items()}
    # These processes live through all cases: what one of them needs is set for all.
    job = jobs[0].model_copy(update={"environment": wanted})
    if job.device == "cuda" and "LOCAL_RANK" not in os.environ:
        raise Failure("RANK is set, LOCAL_RANK is not: which GPU is this rank's? torchrun sets it")
    launcher = JoinedLauncher(job, plan.fault)
    if launcher.why_not:
        raise Failure(launcher.why_not, UNFIT)
    return launcher


def _local(plan: Plan) -> LocalLauncher:
    cluster = None if plan.cluster is None else _here(plan, plan.cluster)
    return LocalLauncher(
        plan.destination.folder / "logs" / "launcher.log",
        cluster=cluster,
        gpu_memory=GpuMemory.of(cell.case for cell in plan.cells),
    )


def _met(plan: Plan, launcher: Launcher) -> list[str]:
    """Waits for the other nodes; a line for each number of ranks, where they will be."""
    if isinstance(launcher, JoinedLauncher) and len(set(launcher.hosts)) > 1:
        return [f"{len(launcher.hosts)} on {placement_of(launcher.hosts)}"]
    if plan.cluster is None or not isinstance(launcher, LocalLauncher):
        return []
    nodes = plan.cluster.nodes
    click.echo(f"waiting for {nodes - 1} of {nodes} nodes at port {plan.cluster.port}", err=True)
    counts = sorted({cell.case.ranks for cell in plan.cells if cell.why_not is None})
    on_gpus = any(cell.case.device == "cuda" for cell in plan.cells)
    roster = launcher.meet(max(counts, default=1), on_gpus=on_gpus)
    return [
        f"{count} on " + placement(spread(count, launcher.per_node, nodes), roster.hosts)
        for count in counts
    ]


def _sweep(plan: Plan, store: Store, launcher: Launcher) -> list[Record]:
    began_s = time.monotonic()
    facts = environment()
    cells = plan.cells
    done = [] if not (store.folder / "runs.csv").exists() else read_rows(store.folder).records
    todo = still_to_do(cells, done)
    try:
        placed = _met(plan, launcher)
        store.write_run(_asked(plan, store) | facts)
        with Screen(
            store.folder,
            [cell.case for cell in todo],
            resumed=len(cells) - len(todo),
            verbose=plan.verbose,
            placed=placed,
        ) as screen:
            sweep = Sweep(
                store=store,
                launcher=launcher,
                run_id=store.folder.resolve().name,
                session=new_session(),
                deadlines=plan.deadlines,
                git_commit=facts["git"].get("commit", ""),
                peak_tflops=_peaks(plan.peak_tflops, facts),
                went=screen.went,
                began_s=began_s,
            )
            for record in sweep.run(todo, screen.started):
                screen.finished(record)
    finally:
        launcher.close()
    everything = read_rows(store.folder).latest()
    ours = {(cell.case.key, cell.case.launch) for cell in cells}
    return [record for record in everything if (record.case, record.launch) in ours]


def _asked(plan: Plan, store: Store) -> dict[str, Any]:
    return {
        "argv": sys.argv,
        "reference": plan.reference or read_run(store.folder).get("reference"),
        "cases": [resolved(cell) for cell in plan.cells],
    }


def _peaks(given: float | None, facts: dict[str, Any]) -> Callable[[Any], float | None]:
    return lambda case: given or known_peak(facts["gpus"], case.workload.dtype)
