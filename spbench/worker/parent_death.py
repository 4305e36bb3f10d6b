"""Processes that die with the one that started them, whenever that was."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
PARENT = "SPBENCH_PARENT"
"""Of what a process starts: whose death is its own, from before it can ask for that."""


def die_with_parent(parent: int | None = None) -> None:
    """On Linux: the kernel kills this process when the one that started it dies.

    ``parent``: its process id, which else the variable of that process tells. If it is another's
    by now, that has happened already.
    """
    told = os.environ.get(PARENT, "")
    expected = parent if parent is not None else int(told) if told.isdecimal() else None
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if expected is not None and os.getppid() != expected:
            os._exit(1)
    os.environ[PARENT] = str(os.getpid())
