"""Runs one command in every node at once: its output, its end, and the events of its links.

Node 0's output is that of netlab. Each line of another node goes to stderr, behind '[node1] ', and
to a file if a folder is given. A node's command has a session of its own, so only netlab ends it:
with the signal that netlab itself got, then after a grace period with SIGKILL.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

from link_events import Agenda
from network import Lab
from system import say

GRACE_S = 10.0
POLL_S = 0.02
TIMED_OUT = 124


class NodeCommands:
    """The processes of one command in all nodes, from ``start`` to ``kill``."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self._readers: list[threading.Thread] = []
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, node: int, command: list[str], log: Path | None) -> None:
        """Starts the command in a node; nodes are started in order."""
        variables = self.lab.variables(node)
        words = self.lab.entry(node) + filled(command, variables)
        own = node == 0
        copy = (log / f"node{node}.log").open("wb") if log and not own else None
        begun = subprocess.Popen(
            words,
            env=os.environ | variables,
            stdin=None if own else subprocess.DEVNULL,
            stdout=None if own else subprocess.PIPE,
            stderr=None if own else subprocess.STDOUT,
            start_new_session=True,
        )
        self._started.append(begun)
        if begun.stdout is not None:
            reader = threading.Thread(target=relay, args=(begun.stdout, node, copy), daemon=True)
            reader.start()
            self._readers.append(reader)

    @property
    def running(self) -> list[subprocess.Popen[bytes]]:
        return [process for process in self._started if process.poll() is None]

    def wait(self, agenda: Agenda, timeout_s: float | None, signals: list[int]) -> int:
        """Returns the exit code once all have ended, time is up, or a signal was caught."""
        begun_s = time.monotonic()
        while self.running:
            elapsed_s = time.monotonic() - begun_s
            if signals:
                self._ask_to_end(signals[0], signals)
                return 128 + signals[0]
            if timeout_s is not None and elapsed_s >= timeout_s:
                say(f"{timeout_s:g} s are over; ending all nodes")
                self._ask_to_end(signal.SIGTERM, signals)
                return TIMED_OUT
            for event in agenda.due(elapsed_s):
                self.lab.set_link(event.node, event.state)
                say(f"{elapsed_s:.1f} s: {event.description}")
            time.sleep(POLL_S)
        codes = [shell_code(process.returncode) for process in self._started]
        for node, code in enumerate(codes[1:], start=1):
            if code:
                say(f"node{node} ended with {code}")
        return codes[0]

    def _ask_to_end(self, number: int, signals: list[int]) -> None:
        """Sends the signal to each command and waits; a second signal to netlab ends the wait."""
        for process in self.running:
            with suppress(ProcessLookupError):
                # Ctrl-C at a terminal reaches a whole group, other signals one process.
                send = os.killpg if number == signal.SIGINT else os.kill
                send(process.pid, number)
        count, deadline_s = len(signals), time.monotonic() + GRACE_S
        while self.running and len(signals) == count and time.monotonic() < deadline_s:
            time.sleep(POLL_S)

    def kill(self) -> None:
        """Kills the commands. Processes that have left their parents end with the lab."""
        for process in self._started:
            process.kill()
            process.wait()

    def join_readers(self) -> None:
        """Waits for the last output, once no process of the lab holds a pipe any more."""
        for reader in self._readers:
            reader.join(timeout=GRACE_S)


def filled(command: list[str], variables: dict[str, str]) -> list[str]:
    """The command with {node}, {nodes} and {head} replaced; other braces stay as they are."""
    words = command
    for name, value in variables.items():
        mark = "{" + name.removeprefix("NETLAB_").lower() + "}"
        words = [word.replace(mark, value) for word in words]
    return words


def relay(source: IO[bytes], node: int, copy: IO[bytes] | None) -> None:
    """Passes a node's output on in whole lines, so that lines of several nodes do not mix."""
    for line in source:
        whole = line if line.endswith(b"\n") else line + b"\n"
        with suppress(OSError, ValueError):  # the node goes on even if nobody reads stderr
            sys.stderr.buffer.write(b"[node%d] %s" % (node, whole))
            sys.stderr.buffer.flush()
        if copy is not None:
            copy.write(line)
            copy.flush()
    if copy is not None:
        copy.close()


def shell_code(returncode: int) -> int:
    """The exit code as a shell reports it: 128 plus the number of a signal."""
    return returncode if returncode >= 0 else 128 - returncode
