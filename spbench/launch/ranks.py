"""This node's ranks of one launch: started by torch elastic, watched, and ended if need be.

Ranks are forked from the fork server and write into log files of their own. Those of one machine
find each other through a file and speak over loopback: no other machine can reach them. Those of
several meet at a key-value store that listens in node 0's launcher before the first of them starts.

A rank ends gracefully if it can: it writes the stacks of its threads into its log (SIGUSR1), has
a grace to end by itself (SIGTERM), and is killed (SIGKILL).
"""

import inspect
import math
import os
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import forkserver
from pathlib import Path
from typing import Any, final

from torch.distributed.elastic.multiprocessing import (
    DefaultLogsSpecs,
    PContext,
    SignalException,
    Std,
    start_processes,
)

from spbench.errors import or_none
from spbench.launch.gpu_memory import oom_kills
from spbench.launch.launcher import LaunchResult
from spbench.launch.process import FORK_SERVER, GRACE_S, STACKS_S, family, send_signal
from spbench.results.machine import numa_nodes, threads_of_a_rank
from spbench.worker.rank_process import MEETING, run_job
from spbench.workload.case import Device, Job

POLL_S = 0.05
STOP_POLL_S = 0.1


@final
@dataclass(frozen=True)
class NodeRanks:
    """The ranks of a launch that run on this node, and where all its ranks meet."""

    node: int
    counts: Sequence[int]
    """Ranks on each node."""
    meeting: Path | tuple[str, int]
    """A file, for ranks of one machine, or host and port of a key-value store."""
    interface: str | None = None
    """The network interface for gloo, unless the user has chosen one; None: gloo's own choice."""

    @property
    def local_size(self) -> int:
        return self.counts[self.node]

    @property
    def first(self) -> int:
        """The lowest rank on this node."""
        return sum(self.counts[: self.node])

    def environment(self, local_rank: int, device: Device) -> dict[str, str]:
        """What init_process_group reads, and how many threads the rank may use."""
        defaults = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"} | self._interfaces(device)
        return {
            **{name: value for name, value in defaults.items() if name not in os.environ},
            **self._meeting_place(),
            "RANK": str(self.first + local_rank),
            "WORLD_SIZE": str(sum(self.counts)),
            "LOCAL_RANK": str(local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_size),
            "TORCHELASTIC_RUN_ID": "launch",  # logs lie in logs/launch_*/attempt_0
            "TORCHELASTIC_RESTART_COUNT": "0",
            "OMP_NUM_THREADS": str(threads_of_a_rank(self.local_size)),
        }

    def _meeting_place(self) -> dict[str, str]:
        if isinstance(self.meeting, Path):
            return {MEETING: str(self.meeting)}
        host, port = self.meeting
        addresses = {"MASTER_ADDR": host, "MASTER_PORT": str(port)}
        return addresses | {"TORCHELASTIC_USE_AGENT_STORE": "True"}  # rank 0 listens nowhere

    def _interfaces(self, device: Device) -> dict[str, str]:
        """NCCL finds the interface that leads to other machines by itself, and never loopback."""
        if self.interface is None:
            return {}
        # On one machine NCCL would refuse loopback, which is all that a machine without a network
        # has.
        for_nccl = device == "cuda" and isinstance(self.meeting, Path)
        nccl = {"NCCL_SOCKET_IFNAME": f"={self.interface}"} if for_nccl else {}  # =: no prefix
        return {"GLOO_SOCKET_IFNAME": self.interface} | nccl


def run_ranks(
    folder: Path, node_ranks: NodeRanks, stop: Callable[[], float | None]
) -> LaunchResult:
    """Starts this node's ranks of the job in ``folder`` and waits for them.

    ``stop`` is called ten times a second: a number of seconds means that the ranks are to be ended,
    with that grace. SIGTERM ends the ranks and raises SignalException.
    """
    oom_kills_before = oom_kills()
    local_ranks = range(node_ranks.local_size)
    try:
        job = Job.read(folder)
        context = start_processes(
            name="ranks",
            entrypoint=run_job,
            args=dict.fromkeys(local_ranks, (folder,)),
            envs={
                rank: node_ranks.environment(rank, job.device) | job.environment
                for rank in local_ranks
            },
            logs_specs=DefaultLogsSpecs(log_dir=str(folder / "logs"), redirects=Std.ALL),
            start_method="forkserver",
            **numa_options(job.device),
        )
        result = _wait(context, node_ranks.first, stop)
    except SignalException:
        raise
    except Exception as error:  # no rank came to be: no process, no memory, no disk
        result = LaunchResult(ok=False, why=f"{type(error).__name__}: {error}")
    if not result.ok and (exitcode := or_none(_end_of_fork_server)) is not None:
        result = LaunchResult(ok=False, culprit=FORK_SERVER, exitcode=exitcode)
    return result.model_copy(update={"starved": oom_kills() > oom_kills_before})


def _end_of_fork_server() -> int | None:
    """How the fork server ended, a signal as a negative number; None while it lives. Its ranks died
    with it. Its end can be asked for again: Python does so before it starts another."""
    pid = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if ended is None:
        return None
    # Signals are negative, as subprocess has them: -9 for SIGKILL.
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


def numa_options(device: Device) -> dict[str, Any]:
    """The argument that binds each rank to the NUMA node of its GPU; none where torch elastic does
    not offer it, numactl is missing, or there is but one node. A binding that fails is no error."""
    if device != "cuda" or shutil.which("numactl") is None:
        return {}
    return or_none(_bound_to_nodes) or {}


def _bound_to_nodes() -> dict[str, Any]:
    from torch.numa.binding import AffinityMode, NumaOptions

    is_offered = "numa_options" in inspect.signature(start_processes).parameters
    if not is_offered or len(numa_nodes()) < 2:
        return {}
    return {"numa_options": NumaOptions(AffinityMode.NODE, should_fall_back_if_binding_fails=True)}


def _wait(ranks: PContext, first_rank: int, stop: Callable[[], float | None]) -> LaunchResult:
    try:
        next_look_s = time.monotonic()
        while (outcome := ranks.wait(0)) is None:
            if time.monotonic() >= next_look_s:
                next_look_s = time.monotonic() + STOP_POLL_S
                # Between looks at the ranks: it reads a file, or asks a store over the network.
                grace_s = stop()
                if grace_s is not None:
                    _end_ranks(ranks, grace_s)
                    return LaunchResult(ok=False, stopped=True)
            time.sleep(POLL_S)
    except Exception:
        ranks.close(signal.SIGTERM, timeout=math.ceil(GRACE_S))
        raise
    if not outcome.failures:
        return LaunchResult(ok=True)
    (first,) = outcome.failures.values()  # torch ends the others at once
    return LaunchResult(ok=False, rank=first_rank + first.local_rank, exitcode=first.exitcode)


def _end_ranks(ranks: PContext, grace_s: float) -> None:
    """Has each rank write its stacks, and ends it and all that it started."""
    families = [process for pid in ranks.pids().values() for process in family(pid)]
    send_signal(families, signal.SIGUSR1)
    time.sleep(STACKS_S)
    send_signal(families, signal.SIGTERM)
    ranks.close(signal.SIGTERM, timeout=math.ceil(grace_s))
    send_signal(families, signal.SIGKILL)
