"""The parent's side: one launcher process on this machine, watched through files.

The parent trusts files and exit codes, and reads no pipe. The launcher lives in a session of
its own, so a Ctrl-C reaches the parent alone, which ends the rest in order. A launch that takes
too long, or that no longer moves, is ended by a file ``stop``: its ranks write their stacks and go,
the launcher stays for the next one. Of several nodes this is node 0.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import final

from spbench.launch.cluster import Cluster, Roster, spread
from spbench.launch.gpu_memory import GpuMemory
from spbench.launch.hang_detector import HangDetector, least_far
from spbench.launch.launcher import LauncherError, LaunchResult
from spbench.launch.process import GRACE_S, STACKS_S, AgentProcess, ask_to_stop
from spbench.launch.turn_seat import Seat
from spbench.results.heartbeat import heartbeat_folder, read_heartbeat
from spbench.results.sample import Sample, sample_path
from spbench.workload.case import Job

POLL_S = 0.02
STOP_S = 10.0
"""How much longer than the grace of its ranks a launcher may take to end them, on all nodes."""


@final
class LocalLauncher:
    """Ranks on this machine, and on those that follow it, through torch elastic in a process
    beside this one.

    ``environment``: variables that it and its ranks have, or with None do not have, while this
    process may think otherwise. ``gpu_memory``: what launchers that take turns on the GPUs look
    after together; None where there are no GPUs. ``seat``: where its ranks take turns with
    another launch; what they wait there is no part of their time.
    """

    def __init__(
        self,
        log: Path,
        environment: Mapping[str, str | None] | None = None,
        cluster: Cluster | None = None,
        gpu_memory: GpuMemory | None = None,
        seat: Seat | None = None,
        grace_s: float = GRACE_S,
    ) -> None:
        self._seat, self._grace_s = seat, grace_s
        environment = {**(environment or {}), **(seat.environment if seat else {})}
        self._cluster, self._gpu_memory = cluster, gpu_memory
        self._folder = log.parent
        words = () if cluster is None else (cluster.model_dump_json(), str(self._folder.resolve()))
        self._agent = AgentProcess(log, environment, words, grace_s)
        self._idle = True
        self._lost = False
        self.roster = Roster()
        self.per_node = 0

    def meet(self, ranks: int, *, on_gpus: bool) -> Roster:
        """Waits for the other nodes, which are to take up to so many ranks: each the same number,
        or as many as the node that has fewest GPUs. Raises LauncherError if one does not come, or
        cannot take its part."""
        where = self._folder / "roster.json"
        where.unlink(missing_ok=True)
        self._agent.start()
        while not where.exists():
            if not self._agent.runs:
                raise LauncherError(f"node 0 could not start: {self._agent.last_line()}")
            time.sleep(POLL_S)
        self.roster = Roster.model_validate_json(where.read_text(encoding="utf-8"))
        if self.roster.why_not:
            raise LauncherError(self.roster.why_not)
        members = self.roster.members
        self.per_node = -(-ranks // len(members))
        if on_gpus:
            least = min(members, key=lambda member: member.gpus)
            self.per_node = least.gpus
            if least.gpus * len(members) < ranks:
                raise LauncherError(
                    f"node {least.node} ({least.host}) shows {least.gpus} GPUs, too few for "
                    f"{ranks} ranks on {len(members)} nodes of as many; give fewer ranks, or nodes "
                    f"that are alike"
                )
        return self.roster

    def run(self, job: Job, folder: Path) -> LaunchResult:
        self._check_fit()
        if self._cluster is not None:
            nodes = spread(job.processes, self.per_node, self._cluster.nodes)
            job = job.model_copy(update={"nodes": nodes})
        _make_room(job, folder)
        with heartbeat_folder(folder) as pulses:
            self._agent.start()
            self._agent.send_line(str(folder.resolve()))
            self._idle = False
            ended = self._watch(folder, pulses, job)
            self._idle = True
        self._lost = self._lost or ended.lost
        if self._gpu_memory is not None:
            self._gpu_memory.ended(ok=ended.ok)
        turns = 0 if self._seat is None else self._seat.turns
        more = {"hosts": self._hosts(job), "waited_s": self._waited_s, "turns": turns}
        return ended.model_copy(update=more)

    @property
    def _waited_s(self) -> float:
        return 0.0 if self._seat is None else self._seat.waited_s

    def _hosts(self, job: Job) -> dict[int, str]:
        if len(job.nodes) < 2:
            return {}
        of_nodes = zip(self.roster.hosts, job.nodes, strict=False)
        return dict(enumerate(host for host, count in of_nodes for _ in range(count)))

    def close(self) -> None:
        self._agent.end(now=not self._idle)

    def _check_fit(self) -> None:
        """Raises LauncherError after a kill that left memory on a GPU, or the loss of a node."""
        if self._lost:
            raise LauncherError("a node is lost; go on with the same --out when it is back")
        if self._cluster is not None and not self._agent.runs:
            raise LauncherError("the launcher of node 0 is gone, and the other nodes with it")
        why_not = self._gpu_memory.why_not() if self._gpu_memory is not None else None
        if why_not is not None:
            raise LauncherError(why_not)

    def _watch(self, folder: Path, pulses: Path, job: Job) -> LaunchResult:
        deadline = time.monotonic() + job.timeout_s
        here = job.nodes[0] if job.nodes else job.processes
        watch = HangDetector(pulses, range(here), from_start=bool(job.nodes))
        if self._seat is not None:
            self._seat.watch(lambda: watch.still_s() > job.hang_s)
        while not (folder / "exit.json").exists():
            if not self._agent.runs:
                exitcode, why = self._agent.exitcode, self._agent.last_line()
                self._agent.end(now=True)
                return LaunchResult(ok=False, exitcode=exitcode, why=why)
            if self._seat is not None:
                self._seat.look()
            still_s = watch.still_s()
            too_late = time.monotonic() > deadline + self._waited_s
            if too_late or still_s > job.hang_s:
                self._stop(folder)
                told = _told(folder)
                if told is not None and told.lost:
                    return told
                if still_s < min(job.hang_s, job.timeout_s / 2):
                    return LaunchResult(ok=False, timed_out=True)
                places = {rank: read_heartbeat(pulses, rank) for rank in range(job.processes)}
                behind, where = least_far(places)
                return LaunchResult(ok=False, hung=where, hung_ranks=behind, still_s=still_s)
            time.sleep(POLL_S)
        return _told(folder) or LaunchResult(
            ok=False, why="its launcher left a file that says nothing"
        )

    def _stop(self, folder: Path) -> None:
        """Ends the ranks, and the launcher too if that does not help."""
        ask_to_stop(folder, self._grace_s)
        deadline = time.monotonic() + STACKS_S + 2 * self._grace_s + STOP_S
        while not (folder / "exit.json").exists():
            if not self._agent.runs or time.monotonic() > deadline:
                self._agent.end(now=True)
                return
            time.sleep(POLL_S)


def _told(folder: Path) -> LaunchResult | None:
    """What the launcher says of how it ended."""
    with contextlib.suppress(OSError, ValueError):
        return LaunchResult.model_validate_json((folder / "exit.json").read_text(encoding="utf-8"))
    return None


def _make_room(job: Job, folder: Path) -> None:
    """The job's file, and none of an earlier launch of the same case."""
    job.write(folder)
    stale = [folder / "exit.json", folder / "stop"]
    stale += [sample_path(folder, rank) for rank in range(job.processes)]
    for path in stale:
        path.unlink(missing_ok=True)


def read_samples(job: Job, folder: Path) -> list[Sample]:
    """What the ranks wrote; a missing or unreadable file is left out."""
    samples = []
    for rank in range(job.processes):
        with contextlib.suppress(OSError, ValueError):
            text = sample_path(folder, rank).read_text(encoding="utf-8")
            samples.append(Sample.model_validate_json(text))
    return samples
