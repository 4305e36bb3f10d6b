"""The launcher process of one node: torch elastic, one launch after another.

Run as ``python -m spbench.launch.agent PARENT [CLUSTER FOLDER]``: with the parent's process id,
so that it does not outlive a parent that dies while this one imports torch. Each line on its
standard input names a folder with a ``job.json``; when that job's ranks have ended it writes
``exit.json`` there. A file ``stop`` in the folder ends them before. Ranks are forked from a
server that has imported torch once, so a launch costs a fraction of a second. End of input, or
SIGTERM, ends it, and its ranks.

With CLUSTER, a JSON text, it is one of several; see ``node_main.py``.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    from spbench.launch.server import begin

    # First: what follows takes seconds. Of several nodes, ranks inherit how to reach the others.
    begin(int(sys.argv[1]), ahead=len(sys.argv) == 2)

import os
import threading
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import (
    DefaultLogsSpecs,
    SignalException,
    Std,
)
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher import api as launcher_api
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from spbench.launch.gpu_memory import oom_kills
from spbench.launch.launcher import LaunchResult
from spbench.launch.shutdown import GRACE_S, end_ranks
from spbench.results.sample import write_atomically
from spbench.worker.main import run_job
from spbench.workload.case import Job

LOOK_S = 0.1
EXIT_S = 10.0
ALONE = {
    "rdzv_backend": "c10d",
    "rdzv_endpoint": "localhost:0",
    "local_addr": "127.0.0.1",  # a host whose name does not resolve would wait for ever
}
"""How the ranks of one machine meet."""


def launch(
    folder: Path,
    stop: Callable[[], bool],
    *,
    processes: int,
    nodes: int = 1,
    meeting: dict[str, Any] | None = None,
) -> LaunchResult:
    """Starts this node's ranks of ``folder``'s job and waits for them; how they ended.

    ``stop`` is asked ten times a second whether they are to be ended.
    """
    over, stopped, starved = threading.Event(), threading.Event(), oom_kills()
    stopper = threading.Thread(target=_stop_when_asked, args=(stop, over, stopped), daemon=True)
    stopper.start()
    try:
        elastic_launch(_config(folder, processes, nodes, meeting), run_job)(str(folder))
        ended = LaunchResult(ok=True)
    except ChildFailedError as failed:
        rank, first = failed.get_first_failure()
        ended = LaunchResult(ok=False, rank=rank, exitcode=first.exitcode)
    except SignalException as ending:  # ours: its ranks have ended
        sys.exit(128 + ending.sigval)
    except Exception as error:  # ranks that never came to be: no port, no process, no rendezvous
        ended = LaunchResult(ok=False, why=f"{type(error).__name__}: {error}")
    finally:
        over.set()
        stopper.join()
    more = {"stopped": stopped.is_set(), "starved": oom_kills() > starved}
    return ended.model_copy(update=more)


def _config(
    folder: Path, processes: int, nodes: int, meeting: dict[str, Any] | None
) -> LaunchConfig:
    cores = len(os.sched_getaffinity(0))
    os.environ["OMP_NUM_THREADS"] = str(max(1, cores // processes))
    os.environ["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] = str(round(GRACE_S))
    return LaunchConfig(
        min_nodes=nodes,
        max_nodes=nodes,
        nproc_per_node=processes,
        max_restarts=0,
        monitor_interval=0.05,
        start_method="forkserver",
        logs_specs=DefaultLogsSpecs(log_dir=str(folder / "logs"), redirects=Std.ALL),
        **(meeting or {**ALONE, "run_id": uuid.uuid4().hex}),
    )


def _stop_when_asked(
    stop: Callable[[], bool], over: threading.Event, stopped: threading.Event
) -> None:
    """Again and again until the launch is over: its ranks may only be about to start."""
    while not over.wait(LOOK_S):
        if stop():
            stopped.set()
            # Direct children are the fork server and its like; ranks are theirs.
            servers = psutil.Process().children()
            end_ranks([rank for server in servers for rank in server.children()])


def be_brief() -> None:
    """Elastic's agents wait for each other at the end, for five minutes, and one whose ranks have
    failed does not come; LaunchConfig has no word for how long.
    """
    patient = partial(LocalElasticAgent, exit_barrier_timeout=EXIT_S)
    launcher_api.LocalElasticAgent = patient  # type: ignore[attr-defined,assignment]


def main() -> None:
    be_brief()
    for line in sys.stdin:
        folder = Path(line.rstrip("\n"))
        ended = launch(folder, (folder / "stop").exists, processes=Job.read(folder).processes)
        write_atomically(folder / "exit.json", ended.model_dump_json())


if __name__ == "__main__":
    if len(sys.argv) > 2:
        from spbench.launch.node_main import main as main_of_node

        main_of_node(*sys.argv[2:])
    else:
        main()
