"""Taking turns with another launch that is there at the same time, a few timed steps each.

Two launches that follow each other meet two states of the machine; two that take turns meet one.
A rank says that it would begin a block, and sleeps until it is told to; saying so again ends its
turn, and so does the end of its process: what it tidies up is not to run beside the other's steps.
``regression/turn_server.py`` is at the other end of the line. Code that knows nothing of turns
never asks for one, and then the launches follow each other.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Mapping
from typing import Self, final

VARIABLE = "SPBENCH_TURNS"
"""The path of the socket at which the referee listens."""
GO = b"g"
LOOK_S = 1.0
TURN_S = 0.5
"""Of a turn, unless a single step takes longer. A machine's state lasts for a second or two: what
follows the other side's step that soon meets the same (docs/decisions/0021). Much shorter turns
would be spent on what the other side left in the caches."""


@final
class TurnClient:
    """One rank's line to the referee."""

    def __init__(self, line: socket.socket, ranks: int, alive: Callable[[], None]) -> None:
        """``alive`` is called each second while it waits: who waits does not hang."""
        self._line, self._ranks, self._alive = line, ranks, alive

    @classmethod
    def of(cls, environ: Mapping[str, str], ranks: int, alive: Callable[[], None]) -> Self | None:
        """None: nobody else is there. ``ranks`` of this launch take each turn together."""
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
        """Ends this launch's turn, and waits for its next; at once where the referee has gone."""
        with contextlib.suppress(OSError):
            self._line.sendall(b"%d\n" % self._ranks)
            while not self._told():
                self._alive()

    def _told(self) -> bool:
        try:
            self._line.recv(len(GO))
        except TimeoutError:
            return False
        return True
