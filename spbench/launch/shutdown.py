"""The ways down, each rung with time for the one before: stacks, SIGTERM, SIGKILL.

Processes are found before the first rung: once a parent is dead its children are nobody's.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence

import psutil

GRACE_S = 5.0
STACKS_S = 0.5
"""For writing stacks; a stopped process never will."""


def end_tree(process: subprocess.Popen[bytes], grace_s: float = GRACE_S) -> None:
    """Ends a process and all that it started, and waits until they are gone."""
    with contextlib.suppress(psutil.NoSuchProcess):
        tree = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)
        process.kill()
        # Python's resource tracker goes by itself, when it has removed what the others left.
        _send([one for one in tree if not _tidies(one)], signal.SIGKILL)
        _, left = psutil.wait_procs(tree, timeout=grace_s)
        _send(left, signal.SIGKILL)
        psutil.wait_procs(left, timeout=grace_s)
    process.wait()


def end_ranks(ranks: Sequence[psutil.Process], grace_s: float = GRACE_S) -> None:
    """Has each write the stacks of its threads into its log, and ends it."""
    ranks = [one for rank in ranks for one in _family(rank)]
    _send(ranks, signal.SIGUSR1)
    time.sleep(STACKS_S)
    _send(ranks, signal.SIGTERM)
    _, left = psutil.wait_procs(ranks, timeout=grace_s)
    _send(left, signal.SIGKILL)
    psutil.wait_procs(left, timeout=grace_s)


def _tidies(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return any("resource_tracker" in word for word in process.cmdline())
    return False


def _family(process: psutil.Process) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return [process, *process.children(recursive=True)]
    return []


def _send(processes: Iterable[psutil.Process], what: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            process.send_signal(what)
