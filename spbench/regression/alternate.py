"""Launches base and head alternately, case by case.

On CPU both launches exist at the same time, and their timed steps take turns
(``regression/turn_server.py``), if there is memory for both and both commits' code knows turns;
otherwise one launch follows the other. On GPUs one always follows the other: two launches would
share each GPU's memory, and a GPU drifts less than shared cores do. Which of base and head goes
first changes from launch to launch, so that neither always follows the other.

All ranks that a launcher forks share its memory layout and its hash seed, which may make their
steps longer or shorter. So where times of base and head are judged, both launchers end after each
pair of launches: the interval then sees that effect as spread, and does not take it for the code's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import psutil

from spbench.doctor.cgroup import allowed
from spbench.errors import or_none
from spbench.launch.turn_seat import Seat
from spbench.results.record import Record
from spbench.sweep.sweep import Sweep
from spbench.workload.case import Cell

MEMORY_MARGIN = 1.2
"""Factor on the measured peaks, since two launches are never quite alike."""


@final
@dataclass(frozen=True, kw_only=True)
class Runner:
    """Runs the cases of one commit: base or head."""

    name: str
    """``base`` or ``now``, as messages and folders call it."""
    sweep: Sweep
    seat: Seat | None = None
    """The seat with which its launches take turns with those of the other runner."""
    tries_all: bool = False
    """Whether to launch what strategies decline here: the code of another commit decides."""
    renews_launcher: bool = False
    """Whether the launcher ends after each pair of launches."""

    def run(self, cell: Cell) -> list[tuple[Runner, Record]]:
        done = self.sweep.run(replace(cell, why_not=None) if self.tries_all else cell)
        return [] if done is None else [(self, done[0])]

    def leave_turns(self) -> None:
        if self.seat is not None:
            self.seat.leave()


def run_alternately(
    runners: Sequence[Runner], cell: Cell
) -> tuple[list[tuple[Runner, Record]], bool]:
    """A record of ``cell`` by each runner, once all are written; and whether the launches would
    have taken turns if there had been memory for both."""
    first, *others = runners if cell.case.launch % 2 == 0 else reversed(runners)
    if others:
        return _run_pair(first, others[0], cell)
    return first.run(cell), False


def _run_pair(
    first: Runner, second: Runner, cell: Cell
) -> tuple[list[tuple[Runner, Record]], bool]:
    """Launches the second while the first waits for its first turn, or else after its end."""
    second_rows: list[tuple[Runner, Record]] = []
    short_of_memory = False

    def launch_second() -> None:
        nonlocal short_of_memory
        short_of_memory = not has_memory_for_another()
        if not short_of_memory:
            second_rows.extend(second.run(cell))
        second.leave_turns()

    if first.seat is not None and second.seat is not None:
        first.seat.expect(launch_second)
        second.seat.expect()
    try:
        first_rows = first.run(cell)
        first.leave_turns()
        return first_rows + (second_rows or second.run(cell)), short_of_memory
    finally:
        for runner in (first, second):
            runner.leave_turns()
            if runner.renews_launcher:
                runner.sweep.launcher.close()


def has_memory_for_another() -> bool:
    """Whether another launch like the running one would find memory: as much as all processes that
    this one has started held at their peaks. Pages that they share count for each."""
    peaks = sum(_peak_bytes(child.pid) for child in psutil.Process().children(recursive=True))
    free = psutil.virtual_memory().available
    limit = allowed().memory_bytes
    return MEMORY_MARGIN * peaks < (free if limit is None else min(free, limit - peaks))


def _peak_bytes(pid: int) -> int:
    """The process's current memory where the system does not tell its peak; 0 if it has ended."""
    now = or_none(lambda: int(psutil.Process(pid).memory_info().rss))
    return or_none(lambda: _high_water_bytes(pid)) or now or 0


def _high_water_bytes(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    (line,) = (line for line in text.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024
