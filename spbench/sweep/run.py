"""Runs the cells of a request, shows each as it finishes, and keeps the rows in a folder.

The row of each launch is written before it is handed out: ``Sweep._launch`` makes it, with the
status and cause that ``launch/launcher.py`` reads from how the launch ended.
"""

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import click

from spbench.doctor.examine import forewarnings
from spbench.errors import UNFIT, Failure, signals_held
from spbench.launch.cluster import Cluster, placement_of
from spbench.launch.gpu_memory import GpuMemory
from spbench.launch.interfaces import why_ranks_cannot_meet
from spbench.launch.launcher import (
    TIME_IS_UP,
    Deadlines,
    Launcher,
    LauncherError,
    rank_to_blame,
    status_and_cause,
)
from spbench.launch.local import LocalLauncher, read_samples
from spbench.launch.process import AgentProcess
from spbench.launch.torchrun import JoinedLauncher, joined_ranks
from spbench.report.progress import Screen
from spbench.results.hand_over import Sample
from spbench.results.machine import environment, gpus
from spbench.results.record import Record
from spbench.results.store import Store
from spbench.results.temporary import temporary_folder
from spbench.sweep.devices import forecast, known_peak, least_capability, visible_gpus
from spbench.sweep.first_launch import compare_with_first, is_disputed, revised
from spbench.sweep.plan import MemorySeen, job_of, noisy_rounds, shared_environment
from spbench.sweep.request import Request
from spbench.sweep.row import columns_of, seconds_by_phase
from spbench.sweep.run_folder import as_asked, folder_for, launch_folder, new_session
from spbench.workload.case import Case, Cell, Device


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
    counts = {case.processes for case in cases}
    most = math.ceil(max(counts, default=0) / nodes)  # 6 ranks on 4 nodes: 2 on the fullest
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
        before = forecast(todo, nodes, request.deadlines.launch_s)
        disturbing = forewarnings(request.device, _ranks_here(todo, nodes), os.environ)
        with Screen(
            store.folder,
            [cell.case for cell in todo],
            resumed=len(cells) - len(todo),
            verbose=request.verbose,
            placed=placements,
            foreseen=[*before.sentences, *idle_in(todo), *disturbing],
            launch_s=before.launch_s,
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


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Where rows go, who starts ranks, and what all rows have in common."""

    store: Store
    launcher: Launcher
    run_id: str
    session: str
    """Unique to this invocation: its launches of one number are a round."""
    deadlines: Deadlines = field(default_factory=Deadlines)
    git_commit: str = ""
    gpus: Sequence[Mapping[str, Any]] = ()
    """The GPUs of this machine: their data sheets give MFU, their age what a strategy asks for."""
    peak_tflops: float | None = None
    """Tflop/s of one device, in place of its data sheet's."""
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    monotonic_s: Callable[[], float] = time.monotonic
    began_s: float = field(default_factory=time.monotonic)
    """When the time of all launches together began."""
    memory: MemorySeen = field(default_factory=MemorySeen)
    """Which cases ran out of memory."""

    def run(self, cell: Cell) -> tuple[Record, Mapping[str, float]] | None:
        """The record of ``cell``, and the seconds of each phase of its launch; None if the time of
        all launches is up.

        On Ctrl-C the case gets a row ``interrupted``, and KeyboardInterrupt is raised.
        """
        left_s = self.began_s + self.deadlines.sweep_s - self.monotonic_s()
        if left_s <= 0:
            return None
        try:
            record, samples, phases_s = self._launch(cell, left_s)
        except KeyboardInterrupt:
            with signals_held():
                self.store.append(self._row(cell.case, self.now(), status="interrupted"))
            raise
        with signals_held():
            self.store.append(record, samples)
            record = self._revise(cell.case, record)
        return record, phases_s

    def _revise(self, case: Case, record: Record) -> Record:
        """Writes the rows that a launch has made wrong, or right again; its own as it is now."""
        if record.status != "ok" or not is_disputed(self.store.folder, case):
            return record
        from spbench.results.runs_csv import latest, read_runs, records_of  # and pandas

        rows = records_of(latest(read_runs(self.store.folder)))
        changed = revised(self.store.folder, case, rows)
        self.store.copy(changed)
        for row in changed:
            if (row.case, row.launch) == (record.case, record.launch):
                record = row
            else:
                said = "counts again" if row.status == "ok" else f"does not count: {row.reason}"
                launch = f"{row.strategy} on {row.world_size} launch {row.launch + 1}"
                click.echo(f"{launch} {said}", err=True)
        return record

    def _launch(
        self, cell: Cell, left_s: float
    ) -> tuple[Record, Sequence[Sample], Mapping[str, float]]:
        started_utc = self.now()
        why_not = cell.why_not or self.memory.why_not(cell.case)
        if why_not is not None:
            return self._row(cell.case, started_utc, status="skipped", reason=why_not), [], {}
        self.store.check_room()
        folder = self.logs_of(cell.case)
        own = replace(self.deadlines, launch_s=min(self.deadlines.launch_s, left_s))
        job = job_of(cell.case, own, least_capability(self.gpus))
        launched_s, start_s = time.time(), time.monotonic()
        launched = self.launcher.run(job, folder)
        launch_s = time.monotonic() - start_s
        samples = read_samples(job, folder)
        phases_s = seconds_by_phase(samples, launched_s, launch_s)
        status, reason = status_and_cause(launched, samples, job)
        of_sweep = own.launch_s < self.deadlines.launch_s and launched.still_s < own.hang_s
        if status in ("timeout", "hang") and of_sweep:
            status, reason = "interrupted", TIME_IS_UP
        self.memory.add(cell.case, status)
        agreement = None
        if status == "ok":
            agreement = compare_with_first(self.store.folder, cell.case, samples)
        if agreement is not None and agreement.is_of_launch:
            status, reason = "wrong_result", agreement.why_wrong or ""
        peak_tflops = self.peak_tflops or known_peak(self.gpus, cell.case.workload.dtype)
        columns = columns_of(cell.case, launched, samples, status, peak_tflops)
        columns |= {"status": status, "reason": reason, "launch_s": launch_s}
        columns |= agreement.columns if agreement is not None else {}
        if status != "ok" and not launched.group_lost:
            columns["log"] = self._log(folder, rank_to_blame(launched, samples))
        kept = samples if status == "ok" else []
        return self._row(cell.case, started_utc, **columns), kept, phases_s

    def logs_of(self, case: Case) -> Path:
        """The folder of a launch, which its ranks write into."""
        return self.store.folder / "logs" / launch_folder(case)

    def _log(self, folder: Path, rank: int | None) -> str:
        """The latest stderr of the rank to blame, or the folder of all logs of the launch."""
        logs = [] if rank is None else sorted(folder.glob(f"logs/*/*/{rank}/stderr.log"))
        latest = max(logs, key=lambda path: path.stat().st_mtime, default=folder / "logs")
        return str(latest.relative_to(self.store.folder))

    def _row(self, case: Case, started_utc: datetime, **columns: Any) -> Record:
        return Record.of_case(
            case,
            run_id=self.run_id,
            round=f"{self.session}.{case.launch}",
            started_utc=started_utc.strftime("%Y-%m-%dT%H:%M:%SZ"),
            git_commit=self.git_commit,
            **columns,
        )


def idle_in(cells: Sequence[Cell]) -> list[str]:
    """Sentences on meshes that leave strategies one rank in each group."""
    cases = [cell.case for cell in cells if cell.why_not is None]
    idle = (case.mesh.why_idle(case.ranks) for case in cases)
    return [*dict.fromkeys(filter(None, idle))]


def run_all(sweep: Sweep, cells: Sequence[Cell], screen: Screen) -> bool:
    """Runs the cells one after another; False if the time of all launches is up before the end."""
    for cell in cells:
        screen.started(cell.case, sweep.logs_of(cell.case))
        launched = sweep.run(cell)
        if launched is None:
            return False
        record, phases_s = launched
        screen.finished(record, phases_s=phases_s)
    return True


def still_to_do(cells: Sequence[Cell], done: Sequence[Record]) -> list[Cell]:
    """The cells that a resumed run has left to do: those without an ``ok`` row.

    A cell that can never run is done once a row says why. A row counts for a case with the same
    measurement budget, a row with the full one for any. The last row of a launch counts.
    """
    last = {(row.case, row.launch, row.effort_label): row for row in done}

    def is_done(cell: Cell) -> bool:
        case = cell.case
        rows = [last.get((case.key, case.launch, budget)) for budget in (case.budget.label, "full")]
        # A row is also skipped for want of memory, which there may be by now; and where the cell
        # cannot run for another reason than its row says, a new row is to say so.
        return any(
            row.status == "ok" or (row.status == "skipped" and row.reason == cell.why_not)
            for row in rows
            if row is not None
        )

    return [cell for cell in cells if not is_done(cell)]
