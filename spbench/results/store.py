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
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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
        """One record for each case and launch: the last that was written.

        Launches of a case are of one effort, quick or full: that of its last record.
        """
        found = {(record.case, record.launch): record for record in self.records}
        quick = {record.case: record.is_quick for record in self.records}
        return [record for record in found.values() if record.is_quick == quick[record.case]]


class Store:
    """Writes one results directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if not str(folder.resolve()).isprintable():
            raise ResultsError(f"cannot write to {str(folder)!a}: not a name that prints")
        with _named(folder):
            folder.mkdir(parents=True, exist_ok=True)
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
        try:
            self._columns()
        except ResultsError:
            self._lock.release()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def append(self, record: Record, samples: Sequence[Sample] = ()) -> None:
        """The row, and behind it every iteration of every rank. Raises ResultsError."""
        with _named(self.folder):
            self._append_samples(record, samples)
            path = self.folder / "runs.csv"
            text = io.StringIO()
            found = self._columns()
            # A file of an older spbench keeps its columns: a row must fit its header.
            writer = csv.DictWriter(text, found or COLUMNS, extrasaction="ignore")
            if found is None:
                writer.writeheader()
            elif not path.read_bytes().endswith(b"\n"):
                text.write("\n")  # the torn last line of a killed run ends here
            writer.writerow({name: _cell(value) for name, value in asdict(record).items()})
            with path.open("a", encoding="utf-8", errors="backslashreplace", newline="") as file:
                file.write(text.getvalue())
                file.flush()
                os.fsync(file.fileno())

    def _columns(self) -> list[str] | None:
        """The header of runs.csv, or None while there is none."""
        path = self.folder / "runs.csv"
        if not path.exists() or path.stat().st_size == 0:
            return None
        with _named(self.folder):
            header = _cells(_lines(path)[0]) or []
        missing = [name for name in REQUIRED if name not in header]
        if missing:
            raise ResultsError(
                f"{path} has no column {', '.join(missing)}; move it away, or use another --out"
            )
        return header

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
        """run.json: what was asked for, by what, where. ``history``: what was asked for before."""
        path = self.folder / "run.json"
        earlier = read_run(self.folder)
        history = [*earlier.get("history", []), earlier.get("argv")] if earlier else []
        cases = {(c["key"], c["launch"]): c for c in earlier.get("cases", [])}
        cases |= {(c["key"], c["launch"]): c for c in facts.get("cases", [])}
        merged = {**facts, "history": history} | ({"cases": list(cases.values())} if cases else {})
        text = json.dumps(merged, indent=2) + "\n"
        with _named(self.folder):
            write_atomically(path, text)


@contextmanager
def _named(folder: Path) -> Iterator[None]:
    """A full or read-only disk is said with the folder's name."""
    try:
        yield
    except OSError as error:
        raise ResultsError(f"cannot write to {folder}: {error.strerror or error}") from None


def _cell(value: object) -> object:
    """A row is one line whatever its texts hold, so that damage stays within its line."""
    if isinstance(value, str):
        return re.sub("[\r\n\0]+", " ", value)
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
        header, *lines = _lines(file)
    except OSError as error:
        raise ResultsError(f"cannot read {file}: {error.strerror}") from None
    columns = _cells(header) or []
    rows = [_record(columns, _cells(line)) for line in lines if line.strip()]
    sound = [record for record in rows if record is not None]
    return Rows(records=sound, damaged=len(rows) - len(sound))


def _lines(file: Path) -> list[str]:
    """At least one line, the header; without line ends."""
    text = file.read_bytes().decode("utf-8-sig", errors="replace")
    return text.replace("\0", "").split("\n")


def _cells(line: str) -> list[str] | None:
    try:
        return next(csv.reader([line.rstrip("\r")]), [])
    except csv.Error:
        return None


def _record(columns: Sequence[str], cells: Sequence[str] | None) -> Record | None:
    """A record, or None if the row is torn, or not one of ours."""
    if cells is None or len(cells) != len(columns):
        return None
    row = dict(zip(columns, cells, strict=True))
    if any(not row.get(name) for name in REQUIRED) or row["status"] not in get_args(Status):
        return None
    known: dict[str, Any] = {}
    types = column_types()
    for name, text in row.items():
        if name not in types:
            continue
        if text != "" or types[name] is str:
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
