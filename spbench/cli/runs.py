"""Which results directory a command means: the one named, or the latest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from spbench.cli.exits import Failure
from spbench.results.record import Record
from spbench.results.store import ResultsError, read_rows, read_run
from spbench.workload.words import counted

RESULTS = Path("results")


def find_run(named: Path | None) -> Path:
    """A results directory or CSV file. Raises Failure with what there is instead."""
    if named is None:
        runs = all_runs()
        if not runs:
            raise Failure(f"no runs under {RESULTS}/ yet; start one with 'spbench run'")
        return runs[-1]
    inside = RESULTS / named
    if not named.exists() and inside.exists():
        return inside
    if not named.exists():
        known = ", ".join(run.name for run in all_runs()[-3:]) or "none yet"
        raise Failure(f"no run at {named}. The latest under {RESULTS}/: {known}")
    return named


def all_runs() -> list[Path]:
    """The runs under results/, the latest last."""
    found = RESULTS.glob("*/runs.csv")
    return [path.parent for path in sorted(found, key=lambda path: path.stat().st_mtime)]


def not_there_yet(run: Path, records: Sequence[Record]) -> int:
    """How many cases run.json asks for that have no row."""
    there = {(record.case, record.launch) for record in records}
    asked = read_run(run).get("cases", []) if run.is_dir() else []
    return sum((case.get("key"), case.get("launch")) not in there for case in asked)


def reference_of(run: Path, records: Sequence[Record]) -> str | None:
    """The strategy to compare the others with that the run's sweep names, if it has a row."""
    folder = run.parent if run.name == "runs.csv" else run
    found = read_run(folder).get("reference")
    return found if any(record.strategy == found for record in records) else None


def records_of(run: Path) -> list[Record]:
    """The latest record of each case; says on stderr how many rows could not be read."""
    try:
        rows = read_rows(run)
    except ResultsError as error:
        raise Failure(str(error)) from None
    if rows.damaged:
        are = "is" if rows.damaged == 1 else "are"
        click.echo(f"{counted(rows.damaged, 'damaged row')} of {run} {are} left out", err=True)
    if not rows.records:
        raise Failure(f"{run} holds no rows to show")
    return rows.latest()
