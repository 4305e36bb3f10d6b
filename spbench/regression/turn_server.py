"""Decides which of two launches may run its next block of timed steps.

Each launch has a seat; its ranks ask there for turns (``worker/turn_client.py``), all ranks for
each turn. The seats are served alternately. No turn begins before both launches have asked, or one
of them has ended: gate, memory and warm-up, which are not timed, would otherwise run beside the
timed steps of the other.

    first   gate, memory, warm-up | waits               | block |       | block |
    second                        | gate ... warm-up    |       | block |       | block

A turn ends when its ranks ask for the next one, or when their processes end: a launch that has run
its last block cleans up before the other goes on. The launch that was expected first begins.

A thread of the parent process listens; it sleeps while no rank asks.
"""

import selectors
import socket
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Self, final

from spbench.launch.turn_seat import Seat
from spbench.results.temporary import temporary_folder

LOOK_S = 0.5
MESSAGE_BYTES = 16


@final
class TurnServer:
    """Two seats, and the thread that serves them."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._closing = threading.Event()
        self._stack = ExitStack()
        self._selector: selectors.BaseSelector
        self._last: Seat | None = None
        """The seat that had the latest turn."""
        self._gave_up = False
        """Whether a turn hung, so that no launch waits for the other any more."""
        self.seats: tuple[Seat, ...] = ()

    def __enter__(self) -> Self:
        """Raises OSError where the system has no Unix sockets, or no folder for them."""
        with ExitStack() as stack:
            folder = stack.enter_context(temporary_folder("spbench-"))
            self._selector = stack.enter_context(selectors.DefaultSelector())
            stack.callback(self._close_connections)
            self.seats = tuple(self._new_seat(folder / name, stack) for name in ("a", "b"))
            thread = threading.Thread(target=self._listen, daemon=True)
            thread.start()
            stack.callback(thread.join)
            stack.callback(self._closing.set)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _new_seat(self, path: Path, stack: ExitStack) -> Seat:
        seat = Seat(path, self._lock, self._serve)
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(path))
        listener.listen()
        self._selector.register(listener, selectors.EVENT_READ, (seat, True))
        return seat

    def _close_connections(self) -> None:
        for seat in self.seats:
            for connection in seat.connections:
                connection.close()

    def _listen(self) -> None:
        while not self._closing.is_set():
            for key, _ in self._selector.select(LOOK_S):
                seat, is_listener = key.data
                with self._lock:
                    if is_listener:
                        self._accept(seat, key.fileobj)  # type: ignore[arg-type]
                    else:
                        self._read(seat, key.fileobj)  # type: ignore[arg-type]
                    self._serve()
            with self._lock:
                self._check_hangs()

    def _accept(self, seat: Seat, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:  # the rank has already ended
            return
        self._selector.register(connection, selectors.EVENT_READ, (seat, False))
        seat.connections.add(connection)

    def _read(self, seat: Seat, connection: socket.socket) -> None:
        try:
            seat.ask(connection, int(connection.recv(MESSAGE_BYTES)))
        except (OSError, ValueError):  # an empty message: the rank has ended
            self._selector.unregister(connection)
            connection.close()
            seat.disconnect(connection)

    def _serve(self) -> None:
        """Grants the next turn, if it is time for one."""
        in_order = sorted(self.seats, key=lambda seat: seat.expected_since_s)
        waiting = [seat for seat in in_order if seat.waits]
        if not any(seat.expected for seat in self.seats):
            self._gave_up, self._last = False, None
        if self._gave_up:
            for seat in waiting:
                seat.grant()
            return
        if any(seat.has_turn or (seat.expected and not seat.waits) for seat in self.seats):
            return
        if waiting:
            following = min(waiting, key=lambda seat: seat is self._last)
            following.turns += self._last not in (None, following)
            self._last = following
            following.grant()

    def _check_hangs(self) -> None:
        """After a turn in which nothing moves no launch waits any more. The launch that hangs is
        ended by its own watch; that of the first launch rests while the second is watched."""
        if any(seat.hangs_in_turn() for seat in self.seats):
            self._gave_up = True
            self._serve()
