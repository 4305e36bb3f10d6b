"""The server that a launcher's ranks are forked from, with torch loaded.

It is begun before the launcher imports torch elastic: both take seconds, here side by side.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing import forkserver

from spbench.bench.family import die_with_parent


def begin(parent: int) -> None:
    """Ties this process to ``parent``, and the server to this process."""
    die_with_parent(parent)
    multiprocessing.set_forkserver_preload(["spbench.launch.preload"])
    forkserver.ensure_running()
