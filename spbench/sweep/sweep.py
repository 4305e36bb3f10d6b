"""Runs cases one after another: each launch becomes a row before the next one starts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from spbench.launch.failure_cause import TIME_IS_UP, rank_to_blame, status_and_cause
from spbench.launch.launcher import Deadlines, Launcher
from spbench.launch.local import read_samples
from spbench.results.record import Record
from spbench.results.sample import Sample
from spbench.results.store import Store
from spbench.sweep.output_folder import launch_folder
from spbench.sweep.plan import job_of
from spbench.sweep.row import facts_of, spent
from spbench.text import counted
from spbench.workload.case import Case, Cell

SIZES = {"axes", "batch", "depth"}
TEXTS = {"name", "source"}


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Where rows go, who starts ranks, and what all rows have in common."""

    store: Store
    launcher: Launcher
    run_id: str
    session: str
    """Unique to this invocation: its launches of one number are a round."""
    deadlines: Deadlines = field(default_factory=Deadlines)
    git_commit: str = ""
    peak_tflops: Callable[[Case], float | None] = lambda _: None
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    went: Callable[[Mapping[str, float]], None] = lambda _: None
    """Told of each launch, before its record is handed out, where its seconds went."""
    monotonic_s: Callable[[], float] = time.monotonic
    began_s: float | None = None
    """When the time of all launches together began to run; None: with the first of them."""
    starved: list[Case] = field(default_factory=list)
    """Cases for which there was no memory."""

    def run(self, cells: Iterable[Cell], started: Callable[[Case], None]) -> Iterator[Record]:
        """A record for each cell, written before it is handed out; fewer if the time is up.

        On Ctrl-C the case under way gets a row ``interrupted``, and the interrupt goes on.
        """
        began_s = self.monotonic_s() if self.began_s is None else self.began_s
        for cell in cells:
            left_s = began_s + self.deadlines.sweep_s - self.monotonic_s()
            if left_s <= 0:
                return
            started(cell.case)
            try:
                record, samples = self._one(cell, left_s)
            except KeyboardInterrupt:
                started_utc = self.now()
                self.store.append(self._row(cell.case, started_utc, status="interrupted"))
                raise
            self.store.append(record, samples)
            yield record

    def _one(self, cell: Cell, left_s: float) -> tuple[Record, list[Sample]]:
        started_utc = self.now()
        why_not = cell.why_not or too_large(cell.case, self.starved)
        if why_not is not None:
            row = self._row(cell.case, started_utc, status="skipped", reason=why_not)
            return row, []
        self.store.check_room()
        folder = self.store.folder / "logs" / launch_folder(cell.case)
        own = replace(self.deadlines, launch_s=min(self.deadlines.launch_s, left_s))
        job = job_of(cell.case, own)
        launched_s, start_s = time.time(), time.monotonic()
        ended = self.launcher.run(job, folder)
        launch_s = time.monotonic() - start_s - ended.waited_s
        samples = read_samples(job, folder)
        self.went(spent(samples, launched_s, launch_s))
        status, reason = status_and_cause(ended, samples, job.processes, own)
        of_sweep = own.launch_s < self.deadlines.launch_s and ended.still_s < own.hang_s
        if status in ("timeout", "hang") and of_sweep:
            status, reason = "interrupted", TIME_IS_UP
        if status in ("oom", "host_oom"):
            self.starved.append(cell.case)
        facts = facts_of(cell.case, ended, samples, status, self.peak_tflops(cell.case))
        facts |= {"status": status, "reason": reason, "launch_s": launch_s}
        facts |= {"turns": ended.turns or None}
        if status != "ok" and not ended.group_lost:
            facts["log"] = self._log(folder, rank_to_blame(ended, samples))
        return self._row(cell.case, started_utc, **facts), samples if status == "ok" else []

    def _log(self, folder: Path, rank: int | None) -> str:
        """What the rank to blame said, or the folder of all that they said."""
        found = [] if rank is None else sorted(folder.glob(f"logs/*/*/{rank}/stderr.log"))
        latest = max(found, key=lambda path: path.stat().st_mtime, default=folder / "logs")
        return str(latest.relative_to(self.store.folder))

    def _row(self, case: Case, started_utc: datetime, **facts: Any) -> Record:
        return Record.of_case(
            case,
            run_id=self.run_id,
            round=f"{self.session}.{case.launch}",
            started_utc=started_utc.strftime("%Y-%m-%dT%H:%M:%SZ"),
            git_commit=self.git_commit,
            **facts,
        )


def still_to_do(cells: Sequence[Cell], done: Sequence[Record]) -> list[Cell]:
    """The cells without an ``ok`` row: what a resumed run has left to do. One that can never run
    is done with the row that says so.

    A row counts for a case that is to be measured with the same effort; a full one for any. Of rows
    of one launch and effort the last counts.
    """
    last = {(one.case, one.launch, one.effort_label): one for one in done}
    declined = {cell.case.key: cell.why_not for cell in cells if cell.why_not is not None}
    finished = {
        launch
        for launch, one in last.items()
        if one.status == "ok" or (one.status == "skipped" and declined.get(one.case) == one.reason)
    }
    return [
        cell
        for cell in cells
        if not any(
            (cell.case.key, cell.case.launch, effort) in finished
            for effort in (cell.case.budget.label, "full")
        )
    ]


def too_large(case: Case, starved: Sequence[Case]) -> str | None:
    """Why there is no memory for it either; None: that is not known."""
    for other in starved:
        if other.key == case.key:
            return f"out of memory in launch {other.launch + 1} already"
        if _is_larger(case, other):
            axes = " x ".join(f"{name} {size}" for name, size in other.workload.axes.items())
            return (
                f"larger than an oom case ({axes}, batch {other.workload.batch}, depth "
                f"{other.workload.depth} on {counted(other.ranks, 'rank')})"
            )
    return None


def _is_larger(case: Case, other: Case) -> bool:
    """Nowhere smaller, on no more ranks, and alike in all that is no size."""
    if (case.strategy, case.device, case.kind) != (other.strategy, other.device, other.kind):
        return False
    mine, theirs = case.workload, other.workload
    alike = [
        work.model_dump(exclude=SIZES | TEXTS) | {"axes": list(work.axes)}
        for work in (mine, theirs)
    ]
    return (
        alike[0] == alike[1]
        and case.ranks <= other.ranks
        and mine.batch >= theirs.batch
        and mine.depth >= theirs.depth
        and all(mine.axes[name] >= size for name, size in theirs.axes.items())
    )
