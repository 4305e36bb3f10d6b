"""What the lab asks of the machine, and how it says that something cannot be done."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress

USAGE = 2
UNFIT = 6
TOOLS = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "sh": "a POSIX shell"}
GONE_WITHIN_S = 10.0
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Failure(Exception):
    """Ends the command with a sentence on stderr and an exit code."""

    def __init__(self, sentence: str, code: int = USAGE) -> None:
        super().__init__(sentence)
        self.code = code


def say(sentence: str) -> None:
    """A line of ours on stderr, in one piece among those of the nodes."""
    sys.stderr.write(f"netlab: {sentence}\n")
    sys.stderr.flush()


def require_fit() -> None:
    """Fails with 6 unless this is root with iproute2."""
    for tool, package in TOOLS.items():
        if shutil.which(tool) is None:
            raise Failure(f"a network lab needs '{tool}', which {package} brings.", UNFIT)
    if os.geteuid() != 0:
        raise Failure("a network lab needs root, which may make network namespaces.", UNFIT)


def ask(*words: str) -> str:
    """Runs one of the tools; what it printed. Its words are ours, so a failure is the machine's.

    In a session of its own: a Ctrl-C at the terminal is for the lab, which has it wait.
    """
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, start_new_session=True
    )
    if done.returncode:
        said = done.stderr.strip() or f"exit code {done.returncode}"
        raise Failure(f"this machine refuses `{shlex.join(words)}`: {said}", UNFIT)
    return done.stdout


def noted_signals() -> list[int]:
    """From now on the signals that would end us are only noted, in the list returned."""
    noted: list[int] = []
    for one in ENDING:
        if signal.getsignal(one) != signal.SIG_IGN:  # nohup, and jobs in a shell's background
            signal.signal(one, lambda number, _: noted.append(number))
    return noted


def processes(namespaces: Iterable[str]) -> list[int]:
    """Every process in them, whatever its session or parent is by now."""
    said = " ".join(ask("ip", "netns", "pids", one) for one in namespaces)
    return [int(word) for word in said.split()]


def end_all(namespaces: Iterable[str]) -> None:
    """Kills until none is left: one may have started another meanwhile."""
    deadline_s = time.monotonic() + GONE_WITHIN_S
    while found := processes(namespaces):
        if time.monotonic() > deadline_s:
            raise Failure(f"the machine does not end processes {found}; try `down` later.", UNFIT)
        for one in found:
            with suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
        time.sleep(0.02)
