"""Says which of two launches may run its next block of timed steps.

Each launch has a seat; its ranks ask there for turns (``worker/turn_client.py``), all of them
for each. The seats are served alternately. No turn begins before both launches have asked, or one
of them has ended: what comes before the timed steps, and is not timed, would else run beside
them.

    first   gate, memory, warm-up | waits               | block |       | block |
    second                        | gate ... warm-up    |       | block |       | block

A turn ends with the next asking, or with the process: whoever has run its last block tidies up
before the other goes on. The first of a pair to be expected begins.

A thread of the parent listens, asleep while nobody asks.
"""

from __future__ import annotations

import selectors
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Self, final

from spbench.worker.turn_client import GO, VARIABLE

LOOK_S = 0.5
WORD_BYTES = 16


@final
class Seat:
    """One of the two launches, as the parent sees it. What begins with an underscore is the
    referee's, who holds the lock."""

    def __init__(self, path: Path, lock: threading.RLock, serve: Callable[[], None]) -> None:
        self.environment: Mapping[str, str] = {VARIABLE: str(path)}
        """Of its ranks."""
        self.lines: set[socket.socket] = set()
        self.expected = self.has_turn = False
        self.expected_s = 0.0
        """When it was."""
        self.turns = 0
        """That its launch took right behind one of the other's."""
        self.hangs: Callable[[], bool] = lambda: False
        """Whether nothing of its launch has moved for too long; from whoever watches it."""
        self._meanwhile: Callable[[], None] | None = None
        self._asking: dict[socket.socket, int] = {}
        """Ranks that wait, and how many there are with them."""
        self._since_s = time.monotonic()
        """When its turn, or its waiting, began."""
        self._waited_s = 0.0
        self._ended_s: float | None = None
        """When its last rank had."""
        self._lock, self._serve = lock, serve

    @property
    def waits(self) -> bool:
        """All its ranks do."""
        with self._lock:
            return bool(self._asking) and len(self._asking) >= max(self._asking.values())

    @property
    def waited_s(self) -> float:
        """How long its ranks have waited since it was last expected."""
        with self._lock:
            now_s = time.monotonic() - self._since_s if self.waits else 0.0
            return self._waited_s + now_s

    def expect(self, meanwhile: Callable[[], None] | None = None) -> None:
        """A launch is to come. ``meanwhile`` is called once, when its ranks wait for their first
        turn, by whoever watches it."""
        with self._lock:
            self.lines, self._asking = set(), {}  # of an earlier launch
            self.expected, self.has_turn, self._waited_s = True, False, 0.0
            self.expected_s = time.monotonic()
            self.turns = 0
            self._ended_s = None
            self._meanwhile = meanwhile

    def leave(self) -> None:
        """It has ended, or is not to come."""
        with self._lock:
            self.expected = self.has_turn = False
            self._meanwhile, self.hangs = None, lambda: False
            self._serve()

    def look(self) -> None:
        """Whoever watches the launch calls this now and then."""
        if self._meanwhile is not None and self.waits:
            call, self._meanwhile = self._meanwhile, None
            call()
            with self._lock:
                if self._ended_s is not None:  # nobody saw it till now, which is not its time
                    self._waited_s += time.monotonic() - self._ended_s

    def _asks(self, line: socket.socket, ranks: int) -> None:
        self._asking[line] = ranks
        if self.waits:
            self.has_turn, self._since_s = False, time.monotonic()

    def _gone(self, line: socket.socket) -> None:
        """A rank has ended."""
        self._waited_s = self.waited_s
        self._since_s = time.monotonic()
        self._asking.pop(line, None)
        if self.lines == {line}:
            self.expected = self.has_turn = False
        self.lines.discard(line)
        if not self.lines:
            self._ended_s = time.monotonic()

    def _go(self) -> None:
        self._waited_s = self.waited_s
        self.has_turn, self._since_s = True, time.monotonic()
        asking, self._asking = self._asking, {}
        for line in asking:
            _say(line)


@final
class Referee:
    """Two seats, and the thread that serves them."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._stack = ExitStack()
        self._selector: selectors.BaseSelector
        self._last: Seat | None = None
        self._gave_up = False
        self.seats: tuple[Seat, ...] = ()

    def __enter__(self) -> Self:
        """Raises OSError where there are no such sockets."""
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="spbench-")))
            self._selector = stack.enter_context(selectors.DefaultSelector())
            stack.callback(self._hang_up)
            self.seats = tuple(self._seat(folder / name, stack) for name in ("a", "b"))
            thread = threading.Thread(target=self._listen, daemon=True)
            thread.start()
            stack.callback(thread.join)
            stack.callback(self._over.set)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _seat(self, path: Path, stack: ExitStack) -> Seat:
        seat = Seat(path, self._lock, self._serve)
        door = stack.enter_context(socket.socket(socket.AF_UNIX))
        door.bind(str(path))
        door.listen()
        self._selector.register(door, selectors.EVENT_READ, (seat, True))
        return seat

    def _hang_up(self) -> None:
        for seat in self.seats:
            for line in seat.lines:
                line.close()

    def _listen(self) -> None:
        while not self._over.is_set():
            for key, _ in self._selector.select(LOOK_S):
                seat, is_door = key.data
                with self._lock:
                    self._hear(seat, key.fileobj, is_door)  # type: ignore[arg-type]
                    self._serve()
            with self._lock:
                self._check_hangs()

    def _hear(self, seat: Seat, line: socket.socket, is_door: bool) -> None:
        if is_door:
            try:
                new, _ = line.accept()
            except OSError:  # who wanted it has ended
                return
            self._selector.register(new, selectors.EVENT_READ, (seat, False))
            seat.lines.add(new)
            return
        try:
            seat._asks(line, int(line.recv(WORD_BYTES)))
        except (OSError, ValueError):  # an empty word is the end of the line
            self._selector.unregister(line)
            line.close()
            seat._gone(line)

    def _serve(self) -> None:
        """The next turn, if it is time for one."""
        in_order = sorted(self.seats, key=lambda seat: seat.expected_s)
        waiting = [seat for seat in in_order if seat.waits]
        if not any(seat.expected for seat in self.seats):
            self._gave_up, self._last = False, None
        if self._gave_up:
            for seat in waiting:
                seat._go()
            return
        if any(seat.has_turn or (seat.expected and not seat.waits) for seat in self.seats):
            return
        if waiting:
            following = min(waiting, key=lambda seat: seat is self._last)
            following.turns += self._last not in (None, following)
            self._last = following
            following._go()

    def _check_hangs(self) -> None:
        """Behind a turn in which nothing moves nobody waits any more: the other launch goes on, and
        the one that hangs is ended by its own watch. That of the first rests meanwhile."""
        if any(seat.has_turn and seat.hangs() for seat in self.seats):
            self._gave_up = True
            self._serve()


def _say(line: socket.socket) -> None:
    try:
        line.send(GO)
    except OSError:  # it ended just now, and its end of the line will be heard
        return
