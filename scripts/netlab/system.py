"""Calls to the operating system: tools, signals and processes; and how failures are reported."""

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
    """Writes a line of netlab to stderr, in one piece among the lines of the nodes."""
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
    """Runs one of the tools and returns its output. A failure is the machine's, since netlab chose
    the words.

    The tool has a session of its own, so that a Ctrl-C at the terminal does not interrupt it.
    """
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, start_new_session=True
    )
    if done.returncode:
        said = done.stderr.strip() or f"exit code {done.returncode}"
        raise Failure(f"this machine refuses `{shlex.join(words)}`: {said}", UNFIT)
    return done.stdout


def caught_signals() -> list[int]:
    """From now on, signals that would end netlab are only appended to the returned list."""
    signals: list[int] = []
    for number in ENDING:
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup, and jobs in a shell's background
            signal.signal(number, lambda caught, _: signals.append(caught))
    return signals


def processes(namespaces: Iterable[str]) -> list[int]:
    """Every process in these namespaces, whatever its session or parent."""
    pids = " ".join(ask("ip", "netns", "pids", space) for space in namespaces)
    return [int(pid) for pid in pids.split()]


def end_all(namespaces: Iterable[str]) -> None:
    """Kills until no process is left, since one may have started another meanwhile."""
    deadline_s = time.monotonic() + GONE_WITHIN_S
    while found := processes(namespaces):
        if time.monotonic() > deadline_s:
            raise Failure(f"the machine does not end processes {found}; try `down` later.", UNFIT)
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
