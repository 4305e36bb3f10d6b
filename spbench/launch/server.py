"""The server that a launcher's ranks are forked from, with torch loaded.

It is begun before the launcher imports torch elastic: both take seconds, here side by side.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
from multiprocessing import forkserver, util

from spbench.worker.parent_death import die_with_parent


def begin(parent: int, *, ahead: bool) -> None:
    """Ties this process to ``parent``, and the server to this process.

    Not ``ahead``: it begins with the first launch, with the environment that is known by then.
    """
    die_with_parent(parent)
    multiprocessing.set_forkserver_preload(["spbench.launch.preload"])
    if ahead:
        signal.signal(signal.SIGTERM, _leave)
        forkserver.ensure_running()


def _leave(signum: int, _: object) -> None:
    """At once, whatever is being imported, and without the folder of the server's socket."""
    shutil.rmtree(util.get_temp_dir(), ignore_errors=True)
    os._exit(128 + signum)
