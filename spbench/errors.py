"""Exit codes, and the error that carries one and that every room may raise."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TypeVar

DONE = 0
INTERNAL = 1
USAGE = 2
SOME_FAILED = 3
REGRESSION = 4
CANNOT_JUDGE = 5
UNFIT = 6
INTERRUPTED = 130
READER_GONE = 141
"""128 + SIGPIPE, as for any program: the output is incomplete, and a run may be unfinished."""


class Failure(Exception):
    """An error that ends the command with a message on stderr and an exit code."""

    def __init__(self, message: str, code: int = USAGE) -> None:
        super().__init__(message)
        self.code = code


class ResultsError(Failure):
    """A results directory cannot be used; the message says why."""

    def __init__(self, message: str) -> None:
        super().__init__(message, UNFIT)


class CannotWriteError(ResultsError):
    """A results directory cannot be written to; the message says why."""


T = TypeVar("T")


def or_none(question: Callable[[], T]) -> T | None:
    """What a machine answers; None where it fails, in ways that nobody foresees."""
    with contextlib.suppress(Exception):
        return question()
    return None
