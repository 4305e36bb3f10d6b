"""Events of links while a command runs: which link goes down or up, and when."""

from __future__ import annotations

import glob
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Event:
    """A node's link that goes ``down`` or ``up`` after seconds, or when a file appears."""

    node: int
    state: str
    after_s: float | None = None
    pattern: str | None = None

    def files(self) -> frozenset[str]:
        """The files that match now. Relative patterns start where netlab was started."""
        if self.pattern is None:
            return frozenset()
        # Path.glob takes no absolute pattern.
        return frozenset(glob.glob(self.pattern, recursive=True))  # noqa: PTH207

    @property
    def description(self) -> str:
        done = "cut" if self.state == "down" else "mended"
        return f"the link of node{self.node} is {done}"


class Agenda:
    """Events that are still to come. A file that exists at the start does not 'appear'."""

    def __init__(self, events: list[Event]) -> None:
        self._waiting = {event: event.files() for event in events}

    def due(self, elapsed_s: float) -> list[Event]:
        """The events whose time has come, each returned once."""
        now = [event for event in self._waiting if self._is_due(event, elapsed_s)]
        for event in now:
            del self._waiting[event]
        return now

    def _is_due(self, event: Event, elapsed_s: float) -> bool:
        if event.after_s is not None:
            return elapsed_s >= event.after_s
        return bool(event.files() - self._waiting[event])
