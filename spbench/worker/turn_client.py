"""Taking turns with another launch that is there at the same time, a few timed steps each.

Two launches that follow each other meet two states of the machine; two that take turns meet one.
A rank asks for a turn before each block, and sleeps until it gets one; asking again ends its turn,
and so does the end of its process, so that no cleaning up runs beside the other launch's steps.
``regression/turn_server.py`` is at the other end of the line. A commit that does not know turns
never asks for one, and then the launches follow each other.
"""

import contextlib
import socket
from collections.abc import Callable, Mapping
from typing import Self, final

VARIABLE = "SPBENCH_TURNS"
"""The path of the socket at which the server of turns listens."""
GO = b"g"
LOOK_S = 1.0
TURN_S = 0.5
"""Seconds of a turn, unless a single step takes longer. A machine's state lasts for a second or
two: launches that alternate this fast meet the same state (docs/decisions/0021). Much shorter
turns would be spent on what the other launch left in the caches."""


@final
class TurnClient:
    """One rank's line to the server of turns."""

    def __init__(self, line: socket.socket, ranks: int, alive: Callable[[], None]) -> None:
        """``alive`` is called each second of waiting, which shows that the rank does not hang."""
        self._line, self._ranks, self._alive = line, ranks, alive

    @classmethod
    def of(cls, environ: Mapping[str, str], ranks: int, alive: Callable[[], None]) -> Self | None:
        """None without another launch. All ``ranks`` of this launch take each turn together."""
        path = environ.get(VARIABLE, "")
        if not path:
            return None
        line = socket.socket(socket.AF_UNIX)
        line.settimeout(LOOK_S)
        try:
            line.connect(path)
        except OSError:
            line.close()
            return None
        return cls(line, ranks, alive)

    def take(self) -> None:
        """Ends this launch's turn, and waits for its next unless the server has gone."""
        with contextlib.suppress(OSError):
            self._line.sendall(b"%d\n" % self._ranks)
            while not self._has_turn():
                self._alive()

    def _has_turn(self) -> bool:
        try:
            self._line.recv(len(GO))
        except TimeoutError:
            return False
        return True
