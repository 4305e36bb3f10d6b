"""Processes that die with the one that started them, whenever that was."""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
PARENT = "SPBENCH_PARENT"
"""The variable by which a process tells those it starts its own process id."""


def die_with_parent(parent: int | None = None) -> None:
    """On Linux: the kernel kills this process when the one that started it dies.

    ``parent``: its process id, by default the one in ``SPBENCH_PARENT``. If this process has
    another parent by now, the death has happened already, and the process exits at once.
    """
    named = os.environ.get(PARENT, "")
    expected = parent if parent is not None else int(named) if named.isdecimal() else None
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if expected is not None and os.getppid() != expected:
            os._exit(1)
    os.environ[PARENT] = str(os.getpid())
