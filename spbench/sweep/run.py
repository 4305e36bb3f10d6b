"""Runs the cells of a request, shows each as it finishes, and keeps the rows in a folder."""

import hashlib
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import click

from spbench.doctor.forewarnings import forewarnings
from spbench.errors import UNFIT, Failure
from spbench.launch.cluster import Cluster, placement_of
from spbench.launch.gpu_memory import GpuMemory
from spbench.launch.interfaces import why_ranks_cannot_meet
from spbench.launch.launcher import LauncherError
from spbench.launch.local import LocalLauncher
from spbench.launch.process import AgentProcess
from spbench.launch.torchrun import JoinedLauncher, joined_ranks
from spbench.report.progress import Screen
from spbench.results.machine import environment, gpus
from spbench.results.record import Record
from spbench.results.store import Store
from spbench.results.temporary import temporary_folder
from spbench.sweep.devices import least_capability, visible_gpus
from spbench.sweep.estimate import foreseen
from spbench.sweep.memory_seen import MemorySeen
from spbench.sweep.plan import job_of, noisy_rounds, shared_environment
from spbench.sweep.request import Request
from spbench.sweep.run_folder import as_asked, folder_for, new_session
from spbench.sweep.sweep import Sweep, run_all, still_to_do
from spbench.workload.case import Cell, Device


@dataclass(frozen=True, kw_only=True)
class Finished:
    """What a run leaves behind."""

    folder: Path
    records: Sequence[Record]
    """The latest row of each launch of a requested case."""
    unfinished: Sequence[Cell]
    """Cells that a resumed run would measure again."""


def run(request: Request, cells: Sequence[Cell]) -> Finished | None:
    """Runs what is left to do of ``cells``. None on a rank or node that is not the first."""
    if request.cluster is not None:
        cluster = described(request.cluster, _asked(cells), request.deadlines.hang_s)
        if not cluster.is_head:
            follow(cluster, request.device)
            return None
        request = replace(request, cluster=cluster)
    is_joined = joined_ranks() is not None
    if not is_joined or int(os.environ["RANK"]) == 0:
        # It refuses --out before other ranks wait for this one.
        folder = folder_for(request, cells)
    launcher = (
        _joined_launcher(request, cells) if is_joined else _local_launcher(request, cells, folder)
    )
    if isinstance(launcher, JoinedLauncher) and not launcher.is_first:
        launcher.follow()
        return None
    with Store(folder) as store:
        return _measure(request, cells, store, launcher)


def follow(cluster: Cluster, device: Device) -> None:
    """The part of every node but the first: starts ranks when node 0 says so, until it ends.
    Raises Failure where they could not meet, or the nodes do not."""
    if (why_not := why_ranks_cannot_meet(device, is_alone=False)) is not None:
        raise LauncherError(why_not)
    where = f"{cluster.head}:{cluster.port}"
    click.echo(f"node {cluster.node} of {cluster.nodes}, following node 0 at {where}", err=True)
    with temporary_folder("spbench-node-") as folder:
        agent = AgentProcess(folder / "launcher.log", {}, (cluster.model_dump_json(), str(folder)))
        agent.start()
        try:
            code = agent.wait()
            if code != 0:
                raise Failure(agent.last_line(), UNFIT)
        finally:
            agent.end(now=True)
    click.echo(f"node {cluster.node}: node 0 is done", err=True)


def _asked(cells: Sequence[Cell]) -> str:
    """What all nodes and ranks must have been asked for."""
    return json.dumps([(cell.case.key, cell.case.launch, cell.case.budget.label) for cell in cells])


def described(cluster: Cluster, cases: str, hang_s: float) -> Cluster:
    """The cluster, with a digest of the ``cases`` that all nodes must have been given."""
    more = {
        "silence_s": min(cluster.silence_s, hang_s),
        "cases_digest": hashlib.sha256(cases.encode()).hexdigest()[:12],
        "gpus": len(visible_gpus()),
    }
    return cluster.model_copy(update=more)


def _joined_launcher(request: Request, cells: Sequence[Cell]) -> JoinedLauncher:
    """Joins ranks that torchrun started; rank 0 decides on variables. Raises Failure."""
    capability = least_capability(gpus())
    jobs = [job_of(cell.case, request.deadlines, capability) for cell in cells]
    to_run = [job for job, cell in zip(jobs, cells, strict=True) if cell.why_not is None]
    if jobs[0].device == "cuda" and "LOCAL_RANK" not in os.environ:
        raise Failure("RANK is set, LOCAL_RANK is not: which GPU is this rank's? torchrun sets it")
    decide = partial(shared_environment, to_run, os.environ)
    return JoinedLauncher(jobs[0], request.fault, asked=_asked(cells), decide=decide)


def _local_launcher(request: Request, cells: Sequence[Cell], folder: Path) -> LocalLauncher:
    gpu_memory = GpuMemory.of(cell.case for cell in cells)
    log = folder / "logs" / "launcher.log"
    return LocalLauncher(log, cluster=request.cluster, gpu_memory=gpu_memory)


def _placements(
    request: Request, cells: Sequence[Cell], launcher: JoinedLauncher | LocalLauncher
) -> list[str]:
    """Waits for the other nodes. Returns a line for each number of ranks: which nodes have them."""
    if isinstance(launcher, JoinedLauncher):
        several = len(set(launcher.hosts)) > 1
        return [f"{len(launcher.hosts)} on {placement_of(launcher.hosts)}"] if several else []
    if request.cluster is None:
        return []
    nodes = request.cluster.nodes
    click.echo(f"waiting for {nodes - 1} of {nodes} nodes at port {request.cluster.port}", err=True)
    counts = sorted({cell.case.ranks for cell in cells if cell.why_not is None})
    launcher.meet(max(counts, default=1), on_gpus=request.device == "cuda")
    return [f"{count} on {launcher.placement(count)}" for count in counts]


def _ranks_here(cells: Sequence[Cell], nodes: int) -> list[int]:
    """The numbers of processes that start on this machine, of several that are filled in turn."""
    cases = [cell.case for cell in cells if cell.why_not is None]
    counts = {1 if case.kind == "one_gpu_share" else case.ranks for case in cases}
    most = -(-max(counts, default=0) // nodes)
    return sorted({min(count, most) for count in counts})


def _measure(
    request: Request, cells: Sequence[Cell], store: Store, launcher: JoinedLauncher | LocalLauncher
) -> Finished:
    began_s = time.monotonic()
    try:
        facts = environment()
        done, _ = _rows(store.folder) if (store.folder / "runs.csv").exists() else ([], [])
        todo = still_to_do(cells, done)
        placements = _placements(request, cells, launcher)
        store.write_run(facts | as_asked(request, cells, store.folder, placements))
        hosts = launcher.hosts if isinstance(launcher, JoinedLauncher) else []
        nodes = len(set(hosts)) or request.nodes
        before = foreseen(todo, nodes, request.deadlines.launch_s)
        disturbing = forewarnings(request.device, _ranks_here(todo, nodes), os.environ)
        with Screen(
            store.folder,
            [cell.case for cell in todo],
            resumed=len(cells) - len(todo),
            verbose=request.verbose,
            placed=placements,
            foreseen=[*before.sentences, *disturbing],
            estimates=before.estimates,
        ) as screen:
            sweep = Sweep(
                store=store,
                launcher=launcher,
                run_id=store.folder.resolve().name,
                session=new_session(),
                deadlines=request.deadlines,
                git_commit=facts["git"].get("commit", ""),
                gpus=visible_gpus(),
                peak_tflops=request.peak_tflops,
                began_s=began_s,
                memory=MemorySeen.of(cells, done, nodes),
            )
            while run_all(sweep, todo, screen):
                todo = noisy_rounds(cells, _rows(store.folder)[1], request.seed)
                if not todo:
                    break
                screen.more([cell.case for cell in todo])
    finally:
        launcher.close()
    records, latest = _rows(store.folder)
    ours = {cell.case.key for cell in cells}
    return Finished(
        folder=store.folder,
        records=[record for record in latest if record.case in ours],
        unfinished=still_to_do(cells, records),
    )


def _rows(folder: Path) -> tuple[list[Record], list[Record]]:
    """All rows of a run, and the latest of each launch."""
    # A new run starts its first ranks before pandas is imported, which takes 0.3 s.
    from spbench.results.runs_csv import latest, read_runs, records_of

    frame = read_runs(folder)
    return records_of(frame), records_of(latest(frame))
