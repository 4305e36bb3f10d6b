"""Exit codes, the error that carries one and that every room may raise, and endings by signal."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

DONE = 0
INTERNAL = 1
USAGE = 2
SOME_FAILED = 3
REGRESSION = 4
CANNOT_JUDGE = 5
UNFIT = 6
INTERRUPTED = 130
ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
READER_GONE = 141
"""128 + SIGPIPE, as for any program: the output is incomplete, and a run may be unfinished."""


class Failure(Exception):
    """An error that ends the command with a message on stderr and an exit code."""

    code = USAGE

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code or self.code


class ResultsError(Failure):
    """A results directory cannot be used; the message says why."""

    code = UNFIT


class CannotWriteError(ResultsError):
    """A file or a folder cannot be written to; the message says why."""


@contextmanager
def writing(place: Path) -> Iterator[None]:
    """Names the file or folder that a disk refuses inside: OSError becomes CannotWriteError."""
    try:
        yield
    except OSError as error:
        raise CannotWriteError(f"cannot write to {place}: {error.strerror or error}") from None


T = TypeVar("T")


def or_none(question: Callable[[], T]) -> T | None:
    """What a machine answers; None where it fails, in ways that nobody foresees."""
    with contextlib.suppress(Exception):
        return question()
    return None


@contextmanager
def signals_held() -> Iterator[None]:
    """A row is written whole: Ctrl-C, or another one behind it, counts when it is there.

    A mask of this thread would not do: another thread of the process takes the signal then.
    """
    came: list[int] = []
    before = {ending: signal.getsignal(ending) for ending in ENDINGS}
    held = {ending: handler for ending, handler in before.items() if callable(handler)}
    if threading.current_thread() is not threading.main_thread():
        held = {}  # handlers run, and may be set, in the main thread alone
    for ending in held:
        signal.signal(ending, lambda number, _: came.append(number))
    try:
        yield
    finally:
        for ending, handler in held.items():
            signal.signal(ending, handler)
        if came:
            signal.raise_signal(came[0])
