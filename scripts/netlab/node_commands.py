"""One command in every node at once: its output, its end, and what happens to its links.

Node 0's output is ours. Of the others each line goes to our stderr, behind '[node1] ', and
to a file if a folder is given. A node's command has a session of its own, so what ends it
is what we send: the signal that we got, time to obey, then SIGKILL to all that is left.
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


class Crew:
    """The processes of one command, by node, from ``start`` to ``dismiss``."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self._readers: list[threading.Thread] = []
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, node: int, command: list[str], log: Path | None) -> None:
        """In that node; nodes are started in order."""
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
        return [one for one in self._started if one.poll() is None]

    def wait(self, agenda: Agenda, timeout_s: float | None, noted: list[int]) -> int:
        """Until all have ended, or time is up, or a signal is noted; the exit code."""
        begun_s = time.monotonic()
        while self.running:
            elapsed_s = time.monotonic() - begun_s
            if noted:
                self._ask_to_end(noted[0], noted)
                return 128 + noted[0]
            if timeout_s is not None and elapsed_s >= timeout_s:
                say(f"{timeout_s:g} s are over; ending all nodes")
                self._ask_to_end(signal.SIGTERM, noted)
                return TIMED_OUT
            for event in agenda.due(elapsed_s):
                self.lab.set_link(event.node, event.state)
                say(f"{elapsed_s:.1f} s: {event.said}")
            time.sleep(POLL_S)
        codes = [shell_code(one.returncode) for one in self._started]
        for node, code in enumerate(codes[1:], start=1):
            if code:
                say(f"node{node} ended with {code}")
        return codes[0]

    def _ask_to_end(self, number: int, noted: list[int]) -> None:
        """The signal to each command; a further one to us cuts its time to obey short."""
        for one in self.running:
            with suppress(ProcessLookupError):
                # Ctrl-C at a terminal reaches a whole group, other signals one process.
                send = os.killpg if number == signal.SIGINT else os.kill
                send(one.pid, number)
        heard, deadline_s = len(noted), time.monotonic() + GRACE_S
        while self.running and len(noted) == heard and time.monotonic() < deadline_s:
            time.sleep(POLL_S)

    def dismiss(self) -> None:
        """Kills what still runs. What has left its parent ends with the lab."""
        for one in self._started:
            one.kill()
            one.wait()

    def listen_to_the_end(self) -> None:
        """Once nothing in the lab holds a pipe any more."""
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
    """Lines of a node as they come, whole, so that those of several do not mix."""
    for line in source:
        whole = line if line.endswith(b"\n") else line + b"\n"
        with suppress(OSError, ValueError):  # nobody reads our stderr: the node goes on
            sys.stderr.buffer.write(b"[node%d] %s" % (node, whole))
            sys.stderr.buffer.flush()
        if copy is not None:
            copy.write(line)
            copy.flush()
    if copy is not None:
        copy.close()


def shell_code(returncode: int) -> int:
    """As a shell has it: 128 and the number for one that a signal ended."""
    return returncode if returncode >= 0 else 128 - returncode
