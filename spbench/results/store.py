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
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any, Self

import click
from filelock import BaseFileLock

from spbench.errors import CannotWriteError, or_none, writing
from spbench.results.hand_over import Sample, write_atomically
from spbench.results.lock import LOCK, taken
from spbench.results.record import COLUMNS, REQUIRED, Record
from spbench.results.run_json import is_damaged, merged_cases, read_run
from spbench.results.variables import without_passwords

AT_LEAST = 3
"""Names of columns in a header that each row needs; no row has so many in its cells."""
CLOCK = re.compile(r"\d\d:\d\d")
NO_HEADER = f"no header with the columns that a row needs ({', '.join(REQUIRED[:4])}, ...)"
BLANK = ',;\t" '
Header = tuple[str, ...]
"""The names of the columns, in the order of the file."""


@dataclass(frozen=True, kw_only=True)
class Lines:
    """The lines of runs.csv by their numbers, from 1.

    A row is one line whatever its texts hold, so that damage stays within its line.
    """

    columns: Header
    headers: Sequence[int]
    """The lines that hold the header: more than one where files were joined."""
    rows: Mapping[int, Sequence[str]]
    """Cells of the lines with as many cells as the header."""
    left_out: Mapping[str, list[int]]
    """Lines that are not rows, by the reason."""
    why_not: str
    """Why no row can be written behind the last line; blank if one can."""


def lines_of(text: str) -> Lines:
    """Headers, rows and other lines of a text; a last line without an end loses its last cell."""
    columns: Header = ()
    headers, why_not = list[int](), ""
    rows: dict[int, Sequence[str]] = {}
    left_out: dict[str, list[int]] = {}
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        is_torn = number == len(lines)
        if not line.strip(BLANK) or (is_torn and number == 1 and _begins_header(line)):
            continue
        cells = _cells_of(_without_last_cell(line) if is_torn else line)
        # A row says when it began, a header never: most lines need no closer look.
        names = () if CLOCK.search(line) else tuple(map(str.strip, cells))
        if len(set(REQUIRED).intersection(names)) >= AT_LEAST:
            if not headers:
                columns, why_not = names, _why_no_row_fits(names)
            if names == columns:
                headers.append(number)
            else:
                why_not = why_not or f"below another header (line {number}), split the file there"
            continue
        reason = why_not if headers else "no header above"
        if not reason and len(cells) != len(columns):
            reason = "more or fewer cells than the header"
        if reason:
            left_out.setdefault(reason, []).append(number)
        else:
            rows[number] = cells
    why_not = why_not if headers else NO_HEADER
    return Lines(columns=columns, headers=headers, rows=rows, left_out=left_out, why_not=why_not)


def _why_no_row_fits(columns: Header) -> str:
    """Which column that a row needs this header lacks, or has twice; blank if none."""
    twice = [f"column {name!r} stands there twice" for name in COLUMNS if columns.count(name) > 1]
    missing = [f"no column {name!r}" for name in REQUIRED if name not in columns]
    return ", ".join([*twice, *missing])


def _cells_of(line: str) -> list[str]:
    """The cells of a line; none if its quotes do not close."""
    if '"' not in line:
        return line.split(",")
    try:
        return next(csv.reader([line], strict=True), [])
    except csv.Error:
        return []


def _without_last_cell(line: str) -> str:
    """A line that a kill has cut: half a figure reads as another figure, so it goes."""
    return line[: line.rfind(",") + 1]


def _begins_header(text: str) -> bool:
    return ",".join(COLUMNS).startswith(text)


def text_of(data: bytes) -> str:
    """The text of a file, with "\\n" at the ends of its lines."""
    text = data.decode("utf-8-sig", errors="replace").replace("\0", "")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def damage_of(data: bytes) -> str:
    """What of a file would be lost if it were written anew, in words; blank: nothing."""
    damage = []
    if b"\0" in data:
        damage.append("it holds null bytes")
    if or_none(lambda: data.decode("utf-8-sig")) is None:
        damage.append("it holds bytes that are not UTF-8")
    if data and not text_of(data).endswith("\n"):
        damage.append("its last line was cut short")
    return ", and ".join(damage)


def ready_for_rows(text: str) -> tuple[str, tuple[str, ...]]:
    """The text that rows can be written behind, and their columns. Raises ValueError with why not.

    A last line that was cut short is ended without its last cell; a file of an older version
    gets the columns that it lacks. Empty if nothing but the beginning of a header is there.
    """
    if not text.strip(BLANK + "\n") or _begins_header(text):
        return "", COLUMNS
    whole, end, torn = text.rpartition("\n")
    if torn:
        text = whole + end + (_without_last_cell(torn) or torn) + "\n"
    content = lines_of(text)
    if content.why_not:
        raise ValueError(content.why_not)
    missing = tuple(name for name in COLUMNS if name not in content.columns)
    lines = text.split("\n")
    for number in content.rows:
        lines[number - 1] += "," * len(missing)
    for number in content.headers:
        lines[number - 1] = ",".join([lines[number - 1], *missing])
    return "\n".join(lines), content.columns + missing


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
        from spbench.results.samples import write_samples  # and pandas: not before ranks start

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
