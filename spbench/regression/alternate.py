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

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import psutil

from spbench.doctor.cgroup import allowed
from spbench.errors import or_none
from spbench.launch.turn_seat import Seat
from spbench.results.record import Record
from spbench.sweep.sweep import Sweep
from spbench.workload.case import Case, Cell

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
    """Whether cases are launched that this process's strategies decline: another commit's code
    decides for itself."""
    renews_launcher: bool = False
    """Whether the launcher ends after each pair of launches."""

    def run(self, cell: Cell, started: Callable[[Case], None]) -> list[tuple[Runner, Record]]:
        cell = replace(cell, why_not=None) if self.tries_all else cell
        return [(self, record) for record in self.sweep.run([cell], started)]

    def leave_turns(self) -> None:
        if self.seat is not None:
            self.seat.leave()


def run_alternately(
    runners: Sequence[Runner],
    cells: Iterable[Cell],
    started: Callable[[Case], None],
    short_of_memory: Callable[[Case], None] = lambda _: None,
) -> Iterator[tuple[Runner, Record]]:
    """Yields a record for each cell and runner once it is written. ``short_of_memory`` is called
    with each case whose launches would have taken turns if there had been memory for both."""
    for cell in cells:
        first, *others = runners if cell.case.launch % 2 == 0 else reversed(runners)
        if others:
            yield from _run_pair(first, others[0], cell, started, short_of_memory)
        else:
            yield from first.run(cell, started)


def _run_pair(
    first: Runner,
    second: Runner,
    cell: Cell,
    started: Callable[[Case], None],
    short_of_memory: Callable[[Case], None],
) -> list[tuple[Runner, Record]]:
    """Launches the second while the first waits for its first turn; or, where that cannot be, after
    the first has ended."""
    second_rows: list[tuple[Runner, Record]] = []

    def launch_second() -> None:
        if has_memory_for_another():
            second_rows.extend(second.run(cell, started))
        else:
            short_of_memory(cell.case)
        second.leave_turns()

    if first.seat is not None and second.seat is not None:
        first.seat.expect(launch_second)
        second.seat.expect()
    try:
        first_rows = first.run(cell, started)
        first.leave_turns()
        return first_rows + (second_rows or second.run(cell, started))
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
