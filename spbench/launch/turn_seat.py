"""The seat of one launch among two that take turns, as the parent process sees it.

``LocalLauncher`` watches the launch and looks at its seat now and then. The turn server
(``regression/turn_server.py``) calls the methods of the second half, and holds the lock meanwhile.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import final

from spbench.worker.turn_client import GO, VARIABLE


@final
class Seat:
    """Whether a launch is expected, waits for its turn, or has it."""

    def __init__(self, path: Path, lock: threading.RLock, serve: Callable[[], None]) -> None:
        self.environment: Mapping[str, str] = {VARIABLE: str(path)}
        """Variables with which the launch's ranks find the server."""
        self.connections: set[socket.socket] = set()
        """The ranks that have connected and not yet ended."""
        self.expected = self.has_turn = False
        self.expected_since_s = 0.0
        self.turns = 0
        """Turns that this launch took directly behind a turn of the other."""
        self._is_hung: Callable[[], bool] | None = None
        self._meanwhile: Callable[[], None] | None = None
        self._asking: dict[socket.socket, int] = {}
        """Waiting ranks, each with the number of ranks of its launch."""
        self._since_s = time.monotonic()
        """When the current turn, or the current wait, began."""
        self._waited_s = 0.0
        self._ended_s: float | None = None
        """When the last rank ended."""
        self._lock, self._serve = lock, serve

    @property
    def waits(self) -> bool:
        """Whether all ranks of the launch wait for a turn."""
        with self._lock:
            return bool(self._asking) and len(self._asking) >= max(self._asking.values())

    @property
    def waited_s(self) -> float:
        """Seconds that the launch's ranks have waited since it was last expected."""
        with self._lock:
            return self._waited_s + (time.monotonic() - self._since_s if self.waits else 0.0)

    def expect(self, meanwhile: Callable[[], None] | None = None) -> None:
        """Announces a launch. ``look`` calls ``meanwhile`` once, when the launch's ranks wait for
        their first turn."""
        with self._lock:
            self.connections, self._asking = set(), {}  # of an earlier launch
            self.expected, self.has_turn, self._waited_s = True, False, 0.0
            self.expected_since_s = time.monotonic()
            self.turns = 0
            self._ended_s = None
            self._meanwhile = meanwhile

    def watch(self, is_hung: Callable[[], bool]) -> None:
        """The launch has begun; ``is_hung`` says whether nothing of it has moved for too long."""
        with self._lock:
            self._is_hung = is_hung

    def look(self) -> None:
        """Runs ``meanwhile`` if it is time for it; called by whoever watches the launch."""
        if self._meanwhile is not None and self.waits:
            call, self._meanwhile = self._meanwhile, None
            call()
            with self._lock:
                # The launch ended unseen during the call: the rest of the call is not its time.
                if self._ended_s is not None:
                    self._waited_s += time.monotonic() - self._ended_s

    def leave(self) -> None:
        """The launch has ended, or will not come."""
        with self._lock:
            self.expected = self.has_turn = False
            self._meanwhile = self._is_hung = None
            self._serve()

    def hangs_in_turn(self) -> bool:
        return self.has_turn and self._is_hung is not None and self._is_hung()

    def ask(self, rank: socket.socket, ranks: int) -> None:
        """A rank asks for the next turn, which ends the current one once all have asked."""
        self._asking[rank] = ranks
        if self.waits:
            self.has_turn, self._since_s = False, time.monotonic()

    def grant(self) -> None:
        """All ranks of the launch get their turn."""
        self._waited_s = self.waited_s
        self.has_turn, self._since_s = True, time.monotonic()
        asking, self._asking = self._asking, {}
        for rank in asking:
            with contextlib.suppress(OSError):  # the rank has just ended; the server will see it
                rank.send(GO)

    def disconnect(self, rank: socket.socket) -> None:
        """A rank has ended."""
        self._waited_s = self.waited_s
        self._since_s = time.monotonic()
        self._asking.pop(rank, None)
        if self.connections == {rank}:
            self.expected = self.has_turn = False
        self.connections.discard(rank)
        if not self.connections:
            self._ended_s = time.monotonic()
