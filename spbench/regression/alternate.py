"""Sides of a check that are measured in turn.

On CPU both launches are there at the same time, and their timed steps take turns
(see ``turn_server.py``), where there is memory for both and the code of both knows turns; else one
launch follows the other. On GPUs it always does: two launches would share each GPU's memory, and a
GPU drifts less than cores that are shared. Which side goes first changes from launch to launch, so
that neither always follows the other.

All ranks that a launcher forks share its addresses and its seed of hashes, and these may make their
steps longer or shorter. So of two sides whose times are judged both launchers end with each pair of
launches: what they do to steps is then spread that the interval sees, and not the code's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from spbench.regression.memory_for_two import has_memory_for_another
from spbench.regression.turn_server import Seat
from spbench.results.record import Record
from spbench.sweep.sweep import Sweep
from spbench.workload.case import Case, Cell


@dataclass(frozen=True, kw_only=True)
class Side:
    """A name for people, and what runs its cases."""

    name: str
    sweep: Sweep
    seat: Seat | None = None
    """Where its launches take turns with the other side's."""
    tries_all: bool = False
    """Whether its code is another than this process's, whose strategies decline for themselves."""

    renews: bool = False
    """Whether its launcher ends with each launch that it and another side make in turn."""

    def run(self, cell: Cell, started: Callable[[Side, Case], None]) -> list[tuple[Side, Record]]:
        cell = replace(cell, why_not=None) if self.tries_all else cell
        return [(self, record) for record in self.sweep.run([cell], partial(started, self))]


def in_turn(
    sides: Sequence[Side],
    cells: Iterable[Cell],
    started: Callable[[Side, Case], None],
    apart: Callable[[Case], None] = lambda _: None,
) -> Iterator[tuple[Side, Record]]:
    """A record for each cell and side, written before it is handed out. ``apart`` is told of a case
    whose launches could take turns, were there memory for both."""
    for cell in cells:
        order = list(sides) if cell.case.launch % 2 == 0 else list(reversed(sides))
        if len(order) > 1:
            first, second = order
            yield from _together(first, second, cell, started, apart)
        else:
            for side in order:
                yield from side.run(cell, started)


def _together(
    first: Side,
    second: Side,
    cell: Cell,
    started: Callable[[Side, Case], None],
    apart: Callable[[Case], None],
) -> list[tuple[Side, Record]]:
    """The second is launched while the first waits for its first turn; else when that is over."""
    came: list[tuple[Side, Record]] = []

    def meanwhile() -> None:
        if has_memory_for_another():
            came.extend(second.run(cell, started))
        else:
            apart(cell.case)
        _leave(second)

    if first.seat is not None and second.seat is not None:
        first.seat.expect(meanwhile)
        second.seat.expect()
    try:
        mine = first.run(cell, started)
        _leave(first)
        return mine + (came or second.run(cell, started))
    finally:
        for side in (first, second):
            _leave(side)
            if side.renews:
                side.sweep.launcher.close()


def _leave(side: Side) -> None:
    if side.seat is not None:
        side.seat.leave()
