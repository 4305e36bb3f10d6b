"""Writing a results directory: runs.csv, samples.csv.gz, run.json, logs/ and plots/.

One writer at a time, held by a lock. A row is on disk before the next launch starts.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from filelock import FileLock, Timeout

from spbench.results.ending import Ending, ending_of
from spbench.results.reading import ResultsError
from spbench.results.record import Record
from spbench.results.run_json import read_run
from spbench.results.sample import Sample, write_atomically
from spbench.results.traces import append_samples


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
            self._ending()
        except ResultsError:
            self._lock.release()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def append(self, record: Record, samples: Sequence[Sample] = ()) -> None:
        """The row, and behind it every iteration of every rank. Raises ResultsError."""
        with _named(self.folder):
            append_samples(self.folder, record, samples)
            path = self.folder / "runs.csv"
            at = self._ending()
            text = io.StringIO()
            text.write("\n" if at.ends_line else "")
            writer = csv.DictWriter(text, at.columns, extrasaction="ignore", delimiter=at.delimiter)
            if not at.has_header:
                writer.writeheader()
            writer.writerow({name: _cell(value) for name, value in asdict(record).items()})
            with path.open("a", encoding="utf-8", errors="backslashreplace", newline="") as file:
                file.truncate(at.size_bytes)
                file.write(text.getvalue())
                file.flush()
                os.fsync(file.fileno())

    def _ending(self) -> Ending:
        """Where a new row of runs.csv goes. Raises ResultsError for a file that is not ours."""
        path = self.folder / "runs.csv"
        if not path.exists():
            return Ending()
        with _named(self.folder):
            found = ending_of(path.read_bytes())
        if found.why_not:
            raise ResultsError(f"{path}: {found.why_not}; move it away, or use another --out")
        return found

    def write_run(self, facts: Mapping[str, Any]) -> None:
        """run.json: what was asked for, by what, where. ``history``: what was asked for before."""
        path = self.folder / "run.json"
        earlier = read_run(self.folder)
        history = earlier.get("history", []) + ([earlier["argv"]] if "argv" in earlier else [])
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
