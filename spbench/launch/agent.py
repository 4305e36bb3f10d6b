"""The launcher process of one node: it forks the ranks of one launch after another.

Run as ``python -m spbench.launch.agent PARENT [CLUSTER FOLDER]``: with the parent's process id,
so that it does not outlive a parent that dies while this one imports torch. Each line on its
standard input names a folder with a ``job.json``; when that job's ranks have ended it writes
``exit.json`` there. A file ``stop`` ends them before. End of input, or SIGTERM, ends this process.

Ranks are forked from a server that is a fork of this process and has imported torch with it, so a
launch costs a fraction of a second. Python would start the server as a process of its own, which
imports torch a second time. It still does so for a server that follows one that has died, since
this process may have threads by then.

With CLUSTER, a JSON text, this is one node of several (``nodes.py``).
"""

import gc
import multiprocessing
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from multiprocessing import forkserver, resource_tracker, util
from pathlib import Path
from typing import Any, NoReturn

from spbench.results.temporary import mark
from spbench.worker.parent_death import die_with_parent


def main() -> None:
    parent, *cluster_and_folder = sys.argv[1:]
    die_with_parent(int(parent))
    gc.disable()  # until torch is there: Python would look for garbage in what is being imported
    signal.signal(signal.SIGTERM, _leave)
    mark(Path(util.get_temp_dir()))
    from torch.distributed.elastic.multiprocessing import SignalException

    import spbench.launch.ranks  # noqa: F401 - all that ranks need, before the fork

    fork_server()
    try:
        if cluster_and_folder:
            _run_node(*cluster_and_folder)
        else:
            _run_alone()
    except SignalException as ending:
        sys.exit(128 + ending.sigval)


def _leave(signum: int, _: object) -> None:
    """At once, whatever is being imported, and without the folder of the server's socket."""
    shutil.rmtree(util.get_temp_dir(), ignore_errors=True)
    os._exit(128 + signum)


def _run_alone() -> None:
    from spbench.launch.interfaces import loopback_interface
    from spbench.launch.process import stop_grace_s
    from spbench.launch.ranks import NodeRanks, run_ranks
    from spbench.results.hand_over import write_atomically
    from spbench.results.heartbeat import find_heartbeats
    from spbench.workload.case import Job

    for line in sys.stdin:
        folder = Path(line.rstrip("\n"))
        meeting = (find_heartbeats(folder) or folder) / "meeting"
        here = NodeRanks(0, [Job.read(folder).processes], meeting, loopback_interface())
        result = run_ranks(folder, here, partial(stop_grace_s, folder))
        write_atomically(folder / "exit.json", result.model_dump_json())


def _run_node(cluster_json: str, folder: str) -> None:
    """``folder``: where node 0 puts the roster, and where a follower's ranks write."""
    from spbench.comm.kv_store import KeyValueStoreError
    from spbench.launch.cluster import Cluster
    from spbench.launch.nodes import coordinate, follow, give_up

    cluster = Cluster.model_validate_json(cluster_json)
    try:
        (coordinate if cluster.is_head else follow)(cluster, Path(folder))
    except KeyValueStoreError as error:
        where = f"{cluster.head}:{cluster.port}"
        if cluster.is_head and "already in use" in str(error):
            give_up(f"port {cluster.port} is taken: another node 0? Give the endpoint another port")
        give_up(
            f"node 0 does not answer at {where}; is the same command running there, and does a "
            f"firewall let its port through? ({error})"
        )


def fork_server() -> None:
    """Starts the fork server. What this process has imported by then, its ranks need not import.

    The text of the command with which Python would start it is run in the fork instead, so that
    the server is Python's own in each version.
    """
    import torch.fx.experimental.symbolic_shapes  # noqa: F401 - by the first backward pass

    multiprocessing.set_forkserver_preload(["spbench.launch.preload"])
    gc.freeze()  # pages of what was imported stay shared, and no rank looks for garbage in it
    gc.enable()
    resource_tracker.ensure_running()  # a process of its own, which the server needs
    in_process_of_its_own, util.spawnv_passfds = util.spawnv_passfds, _fork
    try:
        forkserver.ensure_running()
    finally:
        util.spawnv_passfds = in_process_of_its_own


def _fork(path: bytes, args: Sequence[Any], passfds: Sequence[int]) -> int:  # noqa: ARG001
    """Stands in for ``multiprocessing.util.spawnv_passfds``: the same, without a new Python."""
    # In the parent the child's number, as spawnv gives it; in the child 0, and the life of the
    # server.
    return os.fork() or _serve(args[-1], passfds)


def _serve(command: str, kept_fds: Sequence[int]) -> NoReturn:
    """The life of the server, with the descriptors and signals of a new process."""
    code = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        # With 7 and 9 to keep: 3 to 6, 8, and 10 to the end are closed.
        borders = [2, *sorted(kept_fds), os.sysconf("SC_OPEN_MAX")]
        for lower, upper in pairwise(borders):
            os.closerange(lower + 1, upper)
        exec(command, {})
        code = 0
    except SystemExit:
        code = 0
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()
