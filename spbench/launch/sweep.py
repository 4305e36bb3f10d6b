"""Runs cases one after another: each launch becomes a row before the next one starts."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from spbench.launch.local import Ended, Launcher, read_samples
from spbench.launch.plan import Cell, job_of
from spbench.results.measured import counts, measured
from spbench.results.record import Record
from spbench.results.sample import Sample, Status
from spbench.results.store import Store
from spbench.workload.case import QUICK, Case


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Where rows go, who starts ranks, and what all rows have in common."""

    store: Store
    launcher: Launcher
    run_id: str
    session: str
    """Unique to this invocation: its launches of one number are a round."""
    timeout_s: float
    git_commit: str = ""
    peak_tflops: Callable[[Case], float | None] = lambda _: None
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    went: Callable[[Mapping[str, float]], None] = lambda _: None
    """Told of each launch, before its record is handed out, where its seconds went."""

    def run(self, cells: Iterable[Cell], started: Callable[[Case], None]) -> Iterator[Record]:
        """A record for each cell, written before it is handed out.

        On Ctrl-C the case under way gets a row ``interrupted``, and the interrupt goes on.
        """
        for cell in cells:
            started(cell.case)
            try:
                record, samples = self._one(cell)
            except KeyboardInterrupt:
                started_utc = self.now()
                self.store.append(self._row(cell.case, started_utc, status="interrupted"))
                raise
            self.store.append(record, samples)
            yield record

    def _one(self, cell: Cell) -> tuple[Record, list[Sample]]:
        started_utc = self.now()
        if cell.why_not is not None:
            row = self._row(cell.case, started_utc, status="skipped", reason=cell.why_not)
            return row, []
        folder = self.store.folder / "logs" / folder_name(cell.case)
        job = job_of(cell.case, self.timeout_s)
        launched_s, start_s = time.time(), time.monotonic()
        ended = self.launcher.run(job, folder)
        launch_s = time.monotonic() - start_s
        samples = read_samples(job, folder)
        self.went(spent(samples, launched_s, launch_s))
        status, reason = conclude(ended, samples, job.processes, self.timeout_s)
        facts: dict[str, Any] = {"status": status, "reason": reason, "launch_s": launch_s}
        if samples:
            versions = samples[0].versions
            facts |= {name: versions.get(name, "") for name in ("torch", "cuda", "nccl")}
            facts |= {"gpu": samples[0].device_name, "gated_on": samples[0].gated_on}
            facts["backend"] = samples[0].backend
            facts["environment"] = " ".join(told(samples))
        if status == "ok":
            facts |= measured(cell.case, samples, self.peak_tflops(cell.case))
        elif status == "wrong_result":
            facts |= proofs(samples) | counts(samples)
        if status != "ok":
            facts["log"] = str(folder.relative_to(self.store.folder) / "logs")
        return self._row(cell.case, started_utc, **facts), samples if status == "ok" else []

    def _row(self, case: Case, started_utc: datetime, **facts: Any) -> Record:
        return Record.of_case(
            case,
            run_id=self.run_id,
            round=f"{self.session}.{case.launch}",
            started_utc=started_utc.strftime("%Y-%m-%dT%H:%M:%SZ"),
            git_commit=self.git_commit,
            **facts,
        )


def spent(samples: Sequence[Sample], launched_s: float, launch_s: float) -> dict[str, float]:
    """Seconds from the start of the processes to their end; empty where rank 0 cannot tell."""
    first = next((one for one in samples if one.rank == 0), None)
    if first is None or first.began_s is None or not first.phases_s:
        return {}
    start_s = first.began_s - launched_s
    end_s = launch_s - start_s - sum(first.phases_s.values())
    return {"start": start_s, **first.phases_s, "end": end_s}


def told(samples: Iterable[Sample]) -> list[str]:
    """NAME=value of each variable that any of the ranks tells of, each once."""
    pairs = (pair for sample in samples for pair in sample.environment.items())
    return list(dict.fromkeys(f"{name}={value}" for name, value in pairs))


def folder_name(case: Case) -> str:
    """Readable, safe in any file system, and different for different cases."""
    strategy = re.sub(r"[^A-Za-z0-9.-]+", "-", case.strategy)
    return f"{strategy}-{case.ranks}-{case.key[:8]}-launch{case.launch}"


def proofs(samples: Sequence[Sample]) -> dict[str, float]:
    """The errors of a failed gate are worth keeping; its times do not exist."""
    found = {}
    for name in ("output_error", "gradient_error", "tolerance"):
        values = [value for s in samples if (value := getattr(s, name)) is not None]
        if values:
            found[name] = max(values)
    return found


def conclude(
    ended: Ended, samples: Sequence[Sample], processes: int, timeout_s: float
) -> tuple[Status, str]:
    """The row's status and one line of why, from what the ranks wrote and how they ended."""
    if ended.group_lost:
        return "skipped", "an earlier case broke the process group that was joined"
    failed = [sample for sample in samples if sample.status != "ok"]
    silent = sorted(set(range(processes)) - {sample.rank for sample in samples})
    # A broken connection is mostly the echo of another rank's failure.
    only_echoes = all(sample.status == "comm_error" for sample in failed)
    if ended.timed_out and only_echoes:
        return "timeout", f"not done after {timeout_s:g} s; --timeout sets the deadline"
    died_silently = not ended.ok and (ended.rank is None or ended.rank in silent)
    if failed and not (only_echoes and died_silently):
        first = min(failed, key=_blame)
        return first.status, f"rank {first.rank}: {first.reason}"
    if not ended.ok or silent:
        return "crash", _death(ended, silent)
    for sample in samples:
        if sample.sent_by_phase is not None and sample.sent_by_phase != sample.predicted_by_phase:
            return "wrong_result", (
                f"rank {sample.rank} sent {sample.sent_by_phase}, "
                f"predicted {sample.predicted_by_phase}"
            )
    return "ok", ""


def _blame(sample: Sample) -> tuple[bool, float]:
    known = sample.failed_at_s if sample.failed_at_s is not None else float("inf")
    return sample.status == "comm_error", known


def _death(ended: Ended, silent: Sequence[int]) -> str:
    if ended.ok:
        return f"rank {silent[0]} left no result"
    who = "the launcher" if ended.rank is None else f"rank {ended.rank}"
    if ended.exitcode is not None and ended.exitcode < 0:
        known = {one.value: one.name for one in signal.Signals}
        number = -ended.exitcode
        return f"{who} was ended by {known.get(number, f'signal {number}')}"
    return f"{who} ended with exit code {ended.exitcode} and left no result"


def still_to_do(cells: Sequence[Cell], done: Sequence[Record]) -> list[Cell]:
    """The cells without an ``ok`` row: what a resumed run has left to do.

    A quick row is none for a case that is to be measured in full; a full one is for both. Of
    rows of one launch and effort the last counts.
    """
    last = {(one.case, one.launch, one.is_quick): one.status for one in done}
    finished = {launch for launch, status in last.items() if status == "ok"}
    enough = {True: (True, False), False: (False,)}
    return [
        cell
        for cell in cells
        if not any(
            (cell.case.key, cell.case.launch, quick) in finished
            for quick in enough[cell.case.effort == QUICK]
        )
    ]


def new_folder(parent: Path, name: str) -> Path:
    """``parent/name``, or with a number behind it that is not taken."""
    folder, tries = parent / name, 1
    while folder.exists():
        tries += 1
        folder = parent / f"{name}-{tries}"
    return folder
