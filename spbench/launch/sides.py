"""Sides of a check that are measured in turn: a case on one, then at once on the other.

Which side goes first changes from launch to launch, so that neither always follows the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from spbench.launch.plan import Cell
from spbench.launch.sweep import Sweep
from spbench.results.record import Record
from spbench.workload.case import Case


@dataclass(frozen=True, kw_only=True)
class Side:
    """A name for people, and what runs its cases."""

    name: str
    sweep: Sweep


def in_turn(
    sides: Sequence[Side], cells: Iterable[Cell], started: Callable[[Side, Case], None]
) -> Iterator[tuple[Side, Record]]:
    """A record for each cell and side, written before it is handed out."""
    for cell in cells:
        order = list(sides) if cell.case.launch % 2 == 0 else list(reversed(sides))
        for side in order:
            for record in side.sweep.run([cell], partial(started, side)):
                yield side, record
