"""Runs cases, and writes the row of each before it is handed out."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from spbench.errors import signals_held
from spbench.launch.launcher import TIME_IS_UP, Deadlines, Launcher, rank_to_blame, status_and_cause
from spbench.launch.local import read_samples
from spbench.report.progress import Screen
from spbench.results.record import Record
from spbench.results.sample import Sample
from spbench.results.store import Store
from spbench.sweep.devices import known_peak, least_capability
from spbench.sweep.first_launch import compare_with_first, is_disputed, revised
from spbench.sweep.memory_seen import MemorySeen
from spbench.sweep.plan import job_of
from spbench.sweep.row import columns_of, seconds_by_phase
from spbench.sweep.run_folder import launch_folder
from spbench.workload.case import Case, Cell


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
    gpus: Sequence[Mapping[str, Any]] = ()
    """The GPUs of this machine: their data sheets give MFU, their age what a strategy asks for."""
    peak_tflops: float | None = None
    """Tflop/s of one device, in place of its data sheet's."""
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    monotonic_s: Callable[[], float] = time.monotonic
    began_s: float = field(default_factory=time.monotonic)
    """When the time of all launches together began."""
    memory: MemorySeen = field(default_factory=MemorySeen)
    """Which cases ran out of memory."""

    def run(self, cell: Cell) -> tuple[Record, Mapping[str, float]] | None:
        """The record of ``cell``, and the seconds of each phase of its launch; None if the time of
        all launches is up.

        On Ctrl-C the case gets a row ``interrupted``, and KeyboardInterrupt is raised.
        """
        left_s = self.began_s + self.deadlines.sweep_s - self.monotonic_s()
        if left_s <= 0:
            return None
        try:
            record, samples, phases_s = self._launch(cell, left_s)
        except KeyboardInterrupt:
            with signals_held():
                self.store.append(self._row(cell.case, self.now(), status="interrupted"))
            raise
        with signals_held():
            self.store.append(record, samples)
            record = self._revise(cell.case, record)
        return record, phases_s

    def _revise(self, case: Case, record: Record) -> Record:
        """Writes the rows that a launch has made wrong, or right again; its own as it is now."""
        if record.status != "ok" or not is_disputed(self.store.folder, case):
            return record
        from spbench.results.reading import latest, read_runs, records_of  # and pandas

        rows = records_of(latest(read_runs(self.store.folder)))
        changed = revised(self.store.folder, case, rows)
        self.store.copy(changed)
        for row in changed:
            if (row.case, row.launch) == (record.case, record.launch):
                record = row
            else:
                said = "counts again" if row.status == "ok" else f"does not count: {row.reason}"
                launch = f"{row.strategy} on {row.world_size} launch {row.launch + 1}"
                click.echo(f"{launch} {said}", err=True)
        return record

    def _launch(
        self, cell: Cell, left_s: float
    ) -> tuple[Record, Sequence[Sample], Mapping[str, float]]:
        started_utc = self.now()
        why_not = cell.why_not or self.memory.why_not(cell.case)
        if why_not is not None:
            return self._row(cell.case, started_utc, status="skipped", reason=why_not), [], {}
        self.store.check_room()
        folder = self.logs_of(cell.case)
        own = replace(self.deadlines, launch_s=min(self.deadlines.launch_s, left_s))
        job = job_of(cell.case, own, least_capability(self.gpus))
        launched_s, start_s = time.time(), time.monotonic()
        launched = self.launcher.run(job, folder)
        launch_s = time.monotonic() - start_s
        samples = read_samples(job, folder)
        phases_s = seconds_by_phase(samples, launched_s, launch_s)
        status, reason = status_and_cause(launched, samples, job)
        of_sweep = own.launch_s < self.deadlines.launch_s and launched.still_s < own.hang_s
        if status in ("timeout", "hang") and of_sweep:
            status, reason = "interrupted", TIME_IS_UP
        self.memory.add(cell.case, status)
        agreement = None
        if status == "ok":
            agreement = compare_with_first(self.store.folder, cell.case, samples)
        if agreement is not None and agreement.is_of_launch:
            status, reason = "wrong_result", agreement.why_wrong or ""
        peak_tflops = self.peak_tflops or known_peak(self.gpus, cell.case.workload.dtype)
        columns = columns_of(cell.case, launched, samples, status, peak_tflops)
        columns |= {"status": status, "reason": reason, "launch_s": launch_s}
        columns |= agreement.columns if agreement is not None else {}
        if status != "ok" and not launched.group_lost:
            columns["log"] = self._log(folder, rank_to_blame(launched, samples))
        kept = samples if status == "ok" else []
        return self._row(cell.case, started_utc, **columns), kept, phases_s

    def logs_of(self, case: Case) -> Path:
        """The folder of a launch, which its ranks write into."""
        return self.store.folder / "logs" / launch_folder(case)

    def _log(self, folder: Path, rank: int | None) -> str:
        """The latest stderr of the rank to blame, or the folder of all logs of the launch."""
        logs = [] if rank is None else sorted(folder.glob(f"logs/*/*/{rank}/stderr.log"))
        latest = max(logs, key=lambda path: path.stat().st_mtime, default=folder / "logs")
        return str(latest.relative_to(self.store.folder))

    def _row(self, case: Case, started_utc: datetime, **columns: Any) -> Record:
        return Record.of_case(
            case,
            run_id=self.run_id,
            round=f"{self.session}.{case.launch}",
            started_utc=started_utc.strftime("%Y-%m-%dT%H:%M:%SZ"),
            git_commit=self.git_commit,
            **columns,
        )


def run_all(sweep: Sweep, cells: Sequence[Cell], screen: Screen) -> bool:
    """Runs the cells one after another; False if the time of all launches is up before the end."""
    for cell in cells:
        screen.started(cell.case, sweep.logs_of(cell.case))
        launched = sweep.run(cell)
        if launched is None:
            return False
        record, phases_s = launched
        screen.finished(record, phases_s=phases_s)
    return True


def still_to_do(cells: Sequence[Cell], done: Sequence[Record]) -> list[Cell]:
    """The cells that a resumed run has left to do: those without an ``ok`` row.

    A cell that can never run is done once a row says why. A row counts for a case with the same
    measurement budget, a row with the full one for any. The last row of a launch counts.
    """
    last = {(row.case, row.launch, row.effort_label): row for row in done}

    def is_done(cell: Cell) -> bool:
        launch = cell.case.key, cell.case.launch
        rows = [last.get((*launch, budget)) for budget in (cell.case.budget.label, "full")]
        ends = [(row.status, row.reason) for row in rows if row is not None]
        return ("skipped", cell.why_not) in ends or "ok" in (status for status, _ in ends)

    return [cell for cell in cells if not is_done(cell)]
