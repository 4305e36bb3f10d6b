"""Writing a results directory: runs.csv, samples/, run.json, logs/ and plots/.

One writer at a time, held by a lock. A row is on disk before the next launch starts.
"""

import csv
import io
import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any, Self

import click
from filelock import BaseFileLock

from spbench.errors import CannotWriteError, writing
from spbench.results.csv_lines import damage_of, ready_for_rows, text_of
from spbench.results.lock import LOCK, taken
from spbench.results.record import COLUMNS, Record
from spbench.results.run_json import is_damaged, merged_cases, read_run
from spbench.results.sample import Sample, write_atomically
from spbench.results.variables import without_passwords

LEAST_FREE_BYTES = 16 * 2**20
"""Room for the row, the samples and the logs of a launch, with some to spare."""


class Store:
    """Writes one results directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with writing(folder):
            if not str(_real(folder)).isprintable():
                raise CannotWriteError(f"cannot write to {str(folder)!a}: not a name that prints")
            folder.mkdir(parents=True, exist_ok=True)
        self._lock: BaseFileLock | None = None
        self._columns: tuple[str, ...] = COLUMNS

    def __enter__(self) -> Self:
        self._lock = taken(self.folder)
        try:
            self._prepare()
        except CannotWriteError:
            self._lock.release()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            self._lock.release()

    def check_room(self) -> None:
        """Raises CannotWriteError, before a launch, if its row could not be written."""
        with writing(self.folder):
            self._check_exists()
            disk = shutil.disk_usage(self.folder)
            if not os.access(self.folder, os.W_OK):
                raise CannotWriteError(f"cannot write to {self.folder} any more")
        # A file system without a size does not know what is free either.
        if disk.total and disk.free < LEAST_FREE_BYTES:
            raise CannotWriteError(
                f"the disk of {self.folder} has {disk.free / 2**20:.1f} MiB free, and a launch "
                f"needs {LEAST_FREE_BYTES // 2**20}; make room, then go on"
            )

    def append(self, record: Record, samples: Sequence[Sample] = ()) -> None:
        """Writes every iteration of every rank, then the row. Raises CannotWriteError."""
        from spbench.results.iterations import write_samples  # and pandas: not before ranks start

        with writing(self.folder):
            self._check_exists()
            write_samples(self.folder, record, samples)
        self.copy([record])

    def copy(self, records: Iterable[Record]) -> None:
        """Writes rows alone, as of launches that were measured elsewhere; a failed attempt leaves
        nothing behind. Raises CannotWriteError."""
        path, text = self.folder / "runs.csv", io.StringIO()
        with writing(self.folder):
            self._check_exists()
            size_bytes = path.stat().st_size if path.exists() else 0
            writer = csv.DictWriter(text, self._columns, extrasaction="ignore")
            if size_bytes == 0:
                writer.writeheader()
            for record in records:
                writer.writerow({name: _cell(value) for name, value in asdict(record).items()})
            try:
                with path.open("ab") as file:
                    file.write(text.getvalue().encode(errors="backslashreplace"))
                    file.flush()
                    os.fsync(file.fileno())
            except OSError:
                with suppress(OSError):
                    os.truncate(path, size_bytes)
                raise

    def _check_exists(self) -> None:
        """Raises CannotWriteError if the folder is gone: logs would make it anew, empty."""
        if self._lock is not None and not (self.folder / LOCK).exists():
            raise CannotWriteError(f"{self.folder} was moved or deleted while a run wrote to it")

    def _prepare(self) -> None:
        """Reads runs.csv once and makes it fit to be written on. Raises CannotWriteError for a file
        that spbench did not write."""
        path = self.folder / "runs.csv"
        with writing(self.folder):
            if not path.exists():
                return
            data = path.read_bytes()
            text = text_of(data)
            try:
                ready, self._columns = ready_for_rows(text)
            except ValueError as error:
                raise CannotWriteError(
                    f"{path}: {error}; move it away, or use another --out"
                ) from None
            if damage := damage_of(data):
                keep_damaged(path, damage)
            if ready != text:
                write_atomically(path, ready)

    def write_run(self, facts: Mapping[str, Any]) -> None:
        """Writes run.json; the command lines of earlier invocations become its ``history``."""
        path = self.folder / "run.json"
        if path.exists() and is_damaged(self.folder):
            with writing(self.folder):
                keep_damaged(path, "it is not what a run writes")
        earlier = read_run(self.folder)
        history = [*facts.get("history", []), *earlier.get("history", [])]
        history += [earlier["argv"]] if "argv" in earlier else []
        cases = merged_cases(earlier.get("cases", []), facts.get("cases", []))
        merged = {**facts, "history": history} | ({"cases": cases} if cases else {})
        text = without_passwords(json.dumps(merged, indent=2)) + "\n"
        with writing(self.folder):
            write_atomically(path, text)


def keep_damaged(path: Path, damage: str) -> None:
    """Keeps a file beside itself as it is, before it is written anew, and says so."""
    stamp = f"{path.name}.damaged-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    names = (f"{stamp}-{number}" if number else stamp for number in count())
    copy = next(copy for copy in map(path.with_name, names) if not copy.exists())
    write_atomically(copy, path.read_bytes())
    click.echo(f"{path}: {damage}; the file as it was is kept as {copy.name}", err=True)


def _real(folder: Path) -> Path:
    """The folder without links. Raises CannotWriteError for a link to nowhere or in a circle."""
    try:
        if not folder.is_symlink() or folder.exists():
            return folder.resolve()
    except RuntimeError:
        pass
    raise CannotWriteError(f"cannot write to {folder}: a link that leads nowhere")


def _cell(value: object) -> object:
    """A row is one line whatever its texts hold, so that damage stays within its line."""
    return re.sub("[\r\n\0]+", " ", value) if isinstance(value, str) else value
