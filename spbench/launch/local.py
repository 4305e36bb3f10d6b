"""The parent's side: one launcher process on this machine, watched through files.

The parent trusts files and exit codes, not pipes. Whether a launch makes progress it reads in its
ranks' heartbeats. A launch that takes too long or makes no progress is ended by a file ``stop``:
its ranks write their stacks and end. Of several nodes this is node 0.
"""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar, final

from spbench.errors import Failure, or_none
from spbench.launch.cluster import Cluster, Roster, placement, ranks_per_node, spread
from spbench.launch.copies import mpi_copies, srun_copies
from spbench.launch.gpu_memory import GpuMemory
from spbench.launch.interfaces import why_ranks_cannot_meet
from spbench.launch.launcher import LauncherError, LaunchResult, status_and_cause
from spbench.launch.process import GRACE_S, LAUNCHER, STACKS_S, AgentProcess, ask_to_stop
from spbench.results.hand_over import RowStatus, Sample, read_json, sample_path
from spbench.results.heartbeat import RankPosition, heartbeat_folder, read_heartbeat
from spbench.results.link_report import Exchanged, LinkTimes
from spbench.results.temporary import IN_MEMORY
from spbench.text import counted, listed
from spbench.workload.case import Device, Job

LOOK_S = 0.2
NAMED = 8
"""Up to so many ranks are named one by one."""
STARTING_S = 60.0
"""How long nodes may take to meet."""


@final
class HangDetector:
    """Reads heartbeats at most every 0.2 s; ``still_s`` counts from the last change it saw."""

    def __init__(
        self,
        folder: Path,
        ranks: Sequence[int],
        now_s: Callable[[], float] = time.monotonic,
        *,
        from_start: bool = False,
    ) -> None:
        """Watches the heartbeats of a launch that begins now.

        Parameters
        ----------
        folder:
            Where its ranks write their heartbeats.
        ranks:
            The ranks to watch.
        now_s:
            The clock, in seconds.
        from_start:
            Whether a launch without any heartbeat stands still after a minute. Else it is taken
            to make progress: the ranks of another commit may write none.
        """
        self._folder, self._ranks, self._now_s = folder, ranks, now_s
        self._starting_s = STARTING_S if from_start else math.inf
        self._looked_s = self._changed_s = now_s()
        self._positions: dict[int, RankPosition | None] = dict.fromkeys(ranks)

    def still_s(self) -> float:
        """Seconds since any rank was seen to make progress."""
        now_s = self._now_s()
        if now_s - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            # One look reads a file for each rank: at most five times a second.
            positions = {rank: read_heartbeat(self._folder, rank) for rank in self._ranks}
            if positions != self._positions:
                self._positions, self._changed_s = positions, now_s
        still_s = now_s - self._changed_s
        # Before the first heartbeat nodes may still be meeting: that minute does not count.
        return still_s if any(self._positions.values()) else max(0.0, still_s - self._starting_s)


def least_far(positions: dict[int, RankPosition | None]) -> tuple[list[int], str]:
    """The ranks that got least far, and where they and the others stand, in a sentence.

    A rank that has ended hangs no longer; ranks that have not begun are the least far of all.
    """
    left = {rank: at for rank, at in positions.items() if at is None or not at.ended}
    if not left:
        return [], "every rank had ended"
    # Progress is (phase, steps, transfers): the ranks with the least stand where the hang is.
    least = min(map(_progress, left.values()))
    behind = [rank for rank, at in left.items() if _progress(at) == least]
    where = left[behind[0]]
    sentence = f"{_names(behind)} stopped in {where or 'its start'}"
    if len(behind) < len(left):
        sentence += f", the others in {max(left.values(), key=_progress)}"
    # All stand at the same transfer: none is behind, so that the transfer itself is wrong.
    elif len(behind) > 1 and where is not None and where.transfers:
        sentence += ": their collectives do not match, or what one sends does not arrive"
    return behind, sentence


def _progress(position: RankPosition | None) -> tuple[int, int, int]:
    return (-1, 0, 0) if position is None else position.progress


def _names(ranks: Sequence[int]) -> str:
    if len(ranks) > NAMED:
        return counted(len(ranks), "rank")
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {listed([*map(str, ranks)])}"


Result = TypeVar("Result", Exchanged, LinkTimes)
POLL_S = 0.02
LEAST_SHARED_BYTES = 2**20
"""Shared memory of a launch: the semaphores and heartbeats of some 80 ranks, a page each."""
STOP_S = 10.0
"""How much longer than the grace of its ranks a launcher may take to end them, on all nodes."""


@final
class LocalLauncher:
    """Starts ranks on this machine, and on the nodes that follow it."""

    def __init__(
        self,
        log: Path,
        environment: Mapping[str, str | None] | None = None,
        cluster: Cluster | None = None,
        gpu_memory: GpuMemory | None = None,
        grace_s: float = GRACE_S,
    ) -> None:
        """Starts nothing yet.

        Parameters
        ----------
        log:
            The file for what the launcher process writes.
        environment:
            Variables for the launcher and its ranks; None takes a variable away.
        cluster:
            This node among several, which follow it; None for one machine.
        gpu_memory:
            Shared by the launchers that run on the same GPUs; None without GPUs.
        grace_s:
            Seconds that a rank may take to end by itself.

        Raises
        ------
        Failure
            Where mpirun or srun started several copies of a command for one machine.
        """
        if cluster is None and (why := mpi_copies(os.environ) or srun_copies(os.environ)):
            raise Failure(why)
        self._cluster, self._gpu_memory, self._grace_s = cluster, gpu_memory, grace_s
        self._folder = log.parent
        words = () if cluster is None else (cluster.model_dump_json(), str(self._folder.resolve()))
        self._agent = AgentProcess(log, environment or {}, words, grace_s)
        self._idle = True
        self._node_lost = False
        self._roster = Roster()
        self._per_node = 0

    def meet(self, ranks: int, *, on_gpus: bool) -> None:
        """Waits for the other nodes, which are to share up to so many ranks. Raises LauncherError
        if a node does not come, or cannot take its part. A single machine has nobody to meet."""
        if self._cluster is None:
            return
        self._check_meeting("cuda" if on_gpus else "cpu")
        path = self._folder / "roster.json"
        path.unlink(missing_ok=True)
        self._agent.start()
        while not path.exists():
            if not self._agent.runs:
                raise LauncherError(f"node 0 could not start: {self._agent.last_line()}")
            time.sleep(POLL_S)
        self._roster = Roster.model_validate_json(path.read_text(encoding="utf-8"))
        if self._roster.why_not:
            raise LauncherError(self._roster.why_not)
        self._per_node = ranks_per_node(self._roster.members, ranks, on_gpus=on_gpus)

    def placement(self, ranks: int) -> str:
        """Which ranks of a launch of so many are on which host."""
        return placement(self._spread(ranks), self._roster.hosts)

    def run(self, job: Job, folder: Path) -> LaunchResult:
        self._check_fit(job.device)
        if self._cluster is not None:
            job = job.model_copy(update={"nodes": self._spread(job.processes)})
        job.write(folder)
        samples = [sample_path(folder, rank) for rank in range(job.processes)]
        for path in (folder / "exit.json", folder / "stop", *samples):
            path.unlink(missing_ok=True)  # of an earlier launch of the same case
        with heartbeat_folder(folder) as heartbeats:
            self._agent.start()
            self._agent.send_line(str(folder.resolve()))
            self._idle = False
            result = self._watch(folder, heartbeats, job)
            self._idle = True
        self._node_lost |= result.lost
        if self._gpu_memory is not None:
            self._gpu_memory.launch_ended(ok=result.ok)
        # Ranks fill one node before the next; on a single node hosts go without saying.
        nodes = zip(self._roster.hosts, job.nodes, strict=False) if len(job.nodes) > 1 else ()
        hosts = dict(enumerate(host for host, count in nodes for _ in range(count)))
        return result.model_copy(update={"hosts": hosts})

    def close(self) -> None:
        self._agent.end(now=not self._idle)

    def _spread(self, ranks: int) -> list[int]:
        return spread(ranks, self._per_node, len(self._roster.members))

    def _check_meeting(self, device: Device) -> None:
        """Raises LauncherError where ranks could not meet."""
        why_not = why_ranks_cannot_meet(device, is_alone=self._cluster is None)
        if why_not is not None:
            raise LauncherError(why_not)

    def _check_fit(self, device: Device) -> None:
        """Raises LauncherError where ranks could not meet, where shared memory is full, after a
        kill that left memory on a GPU, or the loss of a node."""
        self._check_meeting(device)
        if self._node_lost:
            raise LauncherError("a node is lost; go on when it is back")
        if self._cluster is not None and not self._agent.runs:
            raise LauncherError("the launcher of node 0 is gone, and the other nodes with it")
        shared = or_none(lambda: shutil.disk_usage(IN_MEMORY))
        if shared is not None and shared.free < LEAST_SHARED_BYTES:
            least = f"{shared.free >> 10} KiB free, and a launch needs {LEAST_SHARED_BYTES >> 10}"
            raise LauncherError(f"{IN_MEMORY} has {least}; delete old files there, then go on")
        if self._gpu_memory is not None and (why_not := self._gpu_memory.why_not()) is not None:
            raise LauncherError(why_not)

    def _watch(self, folder: Path, heartbeats: Path, job: Job) -> LaunchResult:
        deadline = time.monotonic() + job.timeout_s
        # Of several nodes only this one's heartbeats lie here; others send theirs when they end.
        local_ranks = job.nodes[0] if job.nodes else job.processes
        detector = HangDetector(heartbeats, range(local_ranks), from_start=bool(job.nodes))
        while not (folder / "exit.json").exists():
            if not self._agent.runs:
                exitcode, why = self._agent.exitcode, self._agent.last_line()
                self._agent.end(now=True)
                return LaunchResult(ok=False, culprit=LAUNCHER, exitcode=exitcode, why=why)
            still_s = detector.still_s()
            if still_s > job.hang_s or time.monotonic() > deadline:
                return self._end_launch(folder, heartbeats, job, still_s)
            time.sleep(POLL_S)
        unread = LaunchResult(ok=False, why="exit.json cannot be read")
        return read_json(folder / "exit.json", LaunchResult) or unread

    def _end_launch(self, folder: Path, heartbeats: Path, job: Job, still_s: float) -> LaunchResult:
        """Ends the ranks, and the launcher process too if that does not help."""
        if stopped := self._agent.stopped():
            self._agent.end(now=True)  # it would not answer
            why = f"{stopped} was stopped by a signal (SIGSTOP)"
            if still_s > job.hang_s:
                return LaunchResult(ok=False, culprit=stopped, hung=why, still_s=still_s)
            return LaunchResult(ok=False, culprit=stopped, why=why, timed_out=True)
        ask_to_stop(folder, self._grace_s)
        # Stacks, then SIGTERM and SIGKILL with a grace each, on the slowest node.
        deadline = time.monotonic() + STACKS_S + 2 * self._grace_s + STOP_S
        while not (folder / "exit.json").exists() and self._agent.runs:
            if time.monotonic() > deadline:
                self._agent.end(now=True)
            time.sleep(POLL_S)
        result = read_json(folder / "exit.json", LaunchResult)
        if result is not None and result.lost:
            return result
        # Whoever stood still for half of a short --timeout hangs, though --hang-after is longer.
        if still_s < min(job.hang_s, job.timeout_s / 2):
            return LaunchResult(ok=False, timed_out=True)
        positions = {rank: read_heartbeat(heartbeats, rank) for rank in range(job.processes)}
        behind, where = least_far(positions)
        return LaunchResult(ok=False, hung=where, hung_ranks=behind, still_s=still_s)


def read_samples(job: Job, folder: Path) -> list[Sample]:
    """What the ranks wrote; a missing or unreadable file is left out."""
    samples = [read_json(sample_path(folder, rank), Sample) for rank in range(job.processes)]
    return [sample for sample in samples if sample is not None]


def read_results(
    job: Job, folder: Path, launched: LaunchResult, kind: type[Result]
) -> tuple[list[Result], RowStatus, str]:
    """What ranks have measured that did not fail, and the status and cause of their launch.

    Parameters
    ----------
    job, folder:
        The job, and where its ranks wrote their files.
    launched:
        How the launch ended.
    kind:
        What a rank's file holds.
    """
    files = [read_json(sample_path(folder, rank), kind) for rank in range(job.processes)]
    results = [result for result in files if result is not None]
    done: list[Sample] = [Sample(rank=result.rank, status="ok") for result in results]
    return results, *status_and_cause(launched, [*done, *read_samples(job, folder)], job)
