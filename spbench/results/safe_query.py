"""Questions to a machine that may fail in ways nobody foresees, and must not stop a run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def told(question: Callable[[], T]) -> T | None:
    """None where the machine does not tell, however it says so."""
    with contextlib.suppress(Exception):
        return question()
    return None
