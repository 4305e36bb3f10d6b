"""The launcher process of one node: torch elastic, one launch after another.

Run as ``python -m spbench.launch.agent FOLDER``. Each line on its standard input names a
folder with a ``job.json``; when that job's ranks have ended it writes ``exit.json`` there.
Ranks are forked from a server that has imported torch once, so a launch costs a fraction of
a second. End of input, or SIGTERM, ends it, and its ranks with it.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import uuid
from pathlib import Path

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from spbench.bench.main import die_with_parent, run_job
from spbench.results.sample import write_atomically
from spbench.workload.job import Job


def launch(folder: Path) -> dict[str, object]:
    """Starts the ranks of ``folder``'s job and waits for them; how they ended."""
    job = Job.read(folder)
    os.environ["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // job.processes))
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=job.processes,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="127.0.0.1",  # a host whose name does not resolve would wait for ever
        max_restarts=0,
        monitor_interval=0.05,
        start_method="forkserver",
        logs_specs=DefaultLogsSpecs(log_dir=str(folder / "logs"), redirects=Std.ALL),
    )
    try:
        elastic_launch(config, run_job)(str(folder))
    except ChildFailedError as failed:
        rank, first = failed.get_first_failure()
        return {"ok": False, "rank": rank, "exitcode": first.exitcode}
    return {"ok": True}


def main() -> None:
    die_with_parent()
    multiprocessing.set_forkserver_preload(["spbench.launch.preload"])
    for line in sys.stdin:
        folder = Path(line.rstrip("\n"))
        write_atomically(folder / "exit.json", json.dumps(launch(folder)))


if __name__ == "__main__":
    main()
