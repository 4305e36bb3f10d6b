"""Sweeps of tests: into a folder, with a launcher that is real or replays outcomes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from spbench.launch.launcher import Deadlines, Launcher
from spbench.results.record import Record
from spbench.results.store import Store
from spbench.sweep.run import Sweep
from spbench.workload.case import Cell


@contextmanager
def sweep_into(folder: Path, launcher: Launcher, **more: Any) -> Iterator[Sweep]:
    """A sweep whose rows go into ``folder``; ``more`` are further fields of it."""
    known = {"run_id": "a run", "session": "a session", "deadlines": Deadlines(launch_s=60.0)}
    with Store(folder) as store:
        yield Sweep(store=store, launcher=launcher, **known | more)


def run_all(sweep: Sweep, cells: Iterable[Cell]) -> Iterator[Record]:
    """The record of each cell once it is written; fewer if the time is up."""
    for cell in cells:
        done = sweep.run(cell)
        if done is None:
            return
        yield done[0]
