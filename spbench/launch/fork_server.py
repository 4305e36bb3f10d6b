"""The fork server of ranks as a fork of the launcher, so that torch is imported once for both.

Python would start the server as a process of its own, which imports torch a second time. It still
does so for a server that follows one that has died, since this process may have threads by then.
"""

from __future__ import annotations

import gc
import importlib
import multiprocessing
import os
import signal
from collections.abc import Sequence
from itertools import pairwise
from multiprocessing import forkserver, resource_tracker, util
from typing import Any, NoReturn

FIRST_BACKWARD = "torch.fx.experimental.symbolic_shapes"
"""What torch imports at the first backward pass: imported before, it is there for all ranks."""


def fork_server() -> None:
    """Starts the fork server. What this process has imported by then, its ranks need not import.

    The text of the command with which Python would start it is run in the fork instead, so that
    the server is Python's own in each version.
    """
    multiprocessing.set_forkserver_preload(["spbench.launch.preload"])
    importlib.import_module(FIRST_BACKWARD)
    gc.collect()
    gc.freeze()  # pages of what was imported stay shared, and no rank looks for garbage in it
    resource_tracker.ensure_running()  # a process of its own, which the server needs
    in_process_of_its_own, util.spawnv_passfds = util.spawnv_passfds, _fork
    try:
        forkserver.ensure_running()
    finally:
        util.spawnv_passfds = in_process_of_its_own


def _fork(path: bytes, args: Sequence[Any], passfds: Sequence[int]) -> int:  # noqa: ARG001
    """Stands in for ``multiprocessing.util.spawnv_passfds``: the same, without a new Python."""
    return os.fork() or _serve(args[-1], passfds)


def _serve(command: str, kept_fds: Sequence[int]) -> NoReturn:
    """The life of the server, with the descriptors and signals of a new process."""
    code = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        borders = [2, *sorted(kept_fds), os.sysconf("SC_OPEN_MAX")]
        for lower, upper in pairwise(borders):
            os.closerange(lower + 1, upper)
        exec(command, {})
        code = 0
    except SystemExit:
        code = 0
    finally:
        os._exit(code)
