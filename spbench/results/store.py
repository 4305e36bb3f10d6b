"""A results directory: runs.csv, samples.csv.gz, run.json, logs/ and plots/.

One writer at a time, held by a lock. A row is on disk before the next launch starts. Reading
never raises on a damaged file: sound rows are used, the rest is counted.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self, get_args

from filelock import FileLock, Timeout

from spbench.results.record import COLUMNS, Record, column_types
from spbench.results.sample import Sample, Status, write_atomically

SAMPLE_COLUMNS = ("case", "launch", "pass", "rank", "iteration", "ms")
REQUIRED = ("case", "strategy", "workload", "world_size", "launch", "status")


class ResultsError(Exception):
    """A results directory that cannot be used, and why."""


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Records that were read, and how many rows could not be."""

    records: list[Record]
    damaged: int = 0

    def latest(self) -> list[Record]:
        """One record for each case and launch: the last that was written."""
        found = {(record.case, record.launch): record for record in self.records}
        return list(found.values())


class Store:
    """Writes one results directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ResultsError(f"cannot write to {folder}: {error.strerror}") from None
        self._lock = FileLock(folder / ".lock")

    def __enter__(self) -> Self:
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise ResultsError(
                f"{self.folder} is being written by another run; wait for it, or use another --out"
            ) from None
        except OSError as error:
            raise ResultsError(f"cannot write to {self.folder}: {error.strerror}") from None
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def append(self, record: Record, samples: Sequence[Sample] = ()) -> None:
        """The row, and behind it every iteration of every rank."""
        self._append_samples(record, samples)
        path = self.folder / "runs.csv"
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS)
        if not path.exists() or path.stat().st_size == 0:
            writer.writeheader()
        elif not path.read_bytes().endswith(b"\n"):
            text.write("\n")  # the torn last line of a killed run ends here
        writer.writerow({name: _cell(value) for name, value in asdict(record).items()})
        with path.open("a", encoding="utf-8", newline="") as file:
            file.write(text.getvalue())
            file.flush()
            os.fsync(file.fileno())

    def _append_samples(self, record: Record, samples: Sequence[Sample]) -> None:
        path = self.folder / "samples.csv.gz"
        is_new = not path.exists()
        with gzip.open(path, "at", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            if is_new:
                writer.writerow(SAMPLE_COLUMNS)
            for sample in samples:
                for name, times in (("timed", sample.step_ms), ("silent", sample.compute_ms)):
                    for i, ms in enumerate(times or []):
                        row = (record.case, record.launch, name, sample.rank, i, f"{ms:.6g}")
                        writer.writerow(row)

    def write_run(self, facts: Mapping[str, Any]) -> None:
        """run.json: what was asked for, by what, where. A resumed run adds to ``history``."""
        path = self.folder / "run.json"
        earlier = read_run(self.folder)
        history = [*earlier.get("history", []), facts.get("argv")] if earlier else []
        text = json.dumps({**facts, "history": history}, indent=2) + "\n"
        write_atomically(path, text)


def _cell(value: object) -> object:
    if value is None:
        return ""
    return repr(value) if isinstance(value, float) else value


def read_run(folder: Path) -> dict[str, Any]:
    """run.json, or nothing where it is missing or damaged."""
    try:
        found = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def read_rows(path: Path) -> Rows:
    """The records of a results directory, or of one CSV file."""
    file = path / "runs.csv" if path.is_dir() else path
    try:
        text = file.read_bytes().decode("utf-8-sig", errors="replace")
    except OSError as error:
        raise ResultsError(f"cannot read {file}: {error.strerror}") from None
    lines = text.replace("\0", "").splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    rows = _parsed(csv.DictReader(lines, restkey="_more", restval=None))
    sound = [record for record in rows if record is not None]
    return Rows(records=sound, damaged=len(rows) - len(sound))


def _parsed(reader: Iterable[dict[str, Any]]) -> list[Record | None]:
    rows: list[Record | None] = []
    try:
        rows.extend(_record(row) for row in reader)
    except csv.Error:
        rows.append(None)
    return rows


def _record(row: Mapping[str, Any]) -> Record | None:
    """A record, or None if the row is torn, or not one of ours."""
    if "_more" in row or any(not row.get(name) for name in REQUIRED):
        return None
    if row["status"] not in get_args(Status) or None in row.values():
        return None
    known: dict[str, Any] = {}
    types = column_types()
    for name, text in row.items():
        if name not in types:
            continue
        if text != "":
            try:
                known[name] = types[name](text)
            except ValueError:
                return None
            if isinstance(known[name], float) and not math.isfinite(known[name]):
                known[name] = None
    try:
        return Record(**known)
    except TypeError:
        return None
