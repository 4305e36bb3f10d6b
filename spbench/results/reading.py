"""runs.csv as a DataFrame: a row a launch, a column a field of Record, units in the names.

Sound rows are used; what cannot be used is counted and put into words. Nothing raises but
ResultsError, for a file that cannot be read at all.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas

from spbench.errors import ResultsError
from spbench.results.cell_values import as_column, converted
from spbench.results.csv_header import Lines, lines_of, text_of
from spbench.results.record import COLUMNS, Record, column_types
from spbench.text import counted

OLDEST = {"schema_version": 1, "dp_size": 1}
"""What a row has that does not say."""
MOST_SHOWN = 3


def read_runs(path: str | Path) -> pandas.DataFrame:
    """The launches of a results directory, or of one CSV file, in the order they were written.

    A row is a launch, a column is a field of ``Record``; names end in units (``step_ms``,
    ``sent_bytes_forward``, ``samples_per_s``). By dtype:

        str      run_id, case, strategy, workload, status, reason, ...; blank is ""
        Int64    batch, world_size, launch, iterations, ..._bytes; blank is <NA>
        float64  step_ms, compute_ms, samples_per_s, output_error, ...; blank is NaN

    Blank means not measured, never 0. ``frame.attrs["remarks"]`` lists, as sentences, what a reader
    of the figures must know: rows left out and why, rows that repeat others, renamed columns.
    ``frame.attrs["left_out"]`` has the line numbers of the rows left out, by the reason.

    Raises ResultsError for a file that cannot be read.
    """
    path = Path(path)
    file = path / "runs.csv" if path.is_dir() else path
    try:
        lines = lines_of(text_of(file.read_bytes()))
    except OSError as error:
        raise ResultsError(f"cannot read {file}: {error.strerror}") from None
    frame, left_out = _sound_rows(lines)
    once, repeated = _without_repeats(frame)
    once.attrs["left_out"] = left_out
    once.attrs["remarks"] = _remarks(path, lines, once, repeated)
    return once


def frame_of(records: Iterable[Record]) -> pandas.DataFrame:
    """The frame that ``read_runs`` would return for these records."""
    records = list(records)
    frame = pandas.DataFrame(
        {name: as_column(name, (getattr(one, name) for one in records)) for name in COLUMNS}
    )
    frame.attrs |= {"left_out": {}, "remarks": []}
    return frame


def records_of(frame: pandas.DataFrame) -> list[Record]:
    """The rows of a frame as records, None for what was not measured."""
    columns = []
    for name in COLUMNS:
        column = frame[name].astype(object)
        columns.append(column.where(column.notna(), None).tolist())
    return [Record(**dict(zip(COLUMNS, row, strict=True))) for row in zip(*columns, strict=True)]


def latest(frame: pandas.DataFrame) -> pandas.DataFrame:
    """One row for each case and launch: the last that was written, in the place of the first.

    Launches of a case are of one effort: full if a full one succeeded, else that of its last
    row that was not interrupted. So quick launches never hide a full run.
    """
    effort, case = _effort(frame), frame["case"]
    chosen = effort.where(frame["status"] != "interrupted").groupby(case).last()
    chosen = chosen.fillna(effort.groupby(case).first())
    full = case[(frame["status"] == "ok") & (effort == "full")]
    chosen[full.unique()] = "full"
    shown = frame[effort == case.map(chosen)]
    launch = ["case", "launch"]
    place = shown.groupby(launch, sort=False).ngroup()
    last = shown.assign(place=place).drop_duplicates(launch, keep="last")
    ordered: pandas.DataFrame = last.sort_values("place").drop(columns="place")
    return ordered.reset_index(drop=True)


def _effort(frame: pandas.DataFrame) -> pandas.Series[str]:
    """How each row was measured; rows of older versions do not say, and were full."""
    return frame["effort"].where(frame["effort"] != "", "full")


def _sound_rows(lines: Lines) -> tuple[pandas.DataFrame, dict[str, list[int]]]:
    """The rows whose cells are all valid, and the numbers of all lines that are not, by why."""
    if lines.header is None or not lines.rows:
        return frame_of([]), lines.left_out
    cells = pandas.read_csv(
        io.StringIO("\n".join(lines.rows.values())),
        header=None,
        index_col=False,
        dtype=str,
        na_filter=False,
        skip_blank_lines=False,
    )
    why = pandas.Series("", index=cells.index)
    columns: dict[str, Any] = {}
    for name, place in lines.header.places.items():
        columns[name], reasons = converted(name, cells[place])
        if reasons:
            why = why.where(why != "", pandas.Series(reasons))
    for name in COLUMNS:
        if name not in columns:
            columns[name] = as_column(name, _blanks(name, len(cells)))
        if name in OLDEST:
            columns[name] = columns[name].fillna(OLDEST[name])
    left_out = {reason: list(numbers) for reason, numbers in lines.left_out.items()}
    for number, reason in zip(lines.rows, why, strict=True):
        if reason:
            left_out.setdefault(reason, []).append(number)
    frame = pandas.DataFrame({name: columns[name] for name in COLUMNS})
    return frame[why == ""].reset_index(drop=True), left_out


def _blanks(name: str, count: int) -> list[Any]:
    return ["" if column_types()[name] is str else None] * count


def _without_repeats(frame: pandas.DataFrame) -> tuple[pandas.DataFrame, int]:
    """Rows that are exactly as one above them count once."""
    alike = frame.duplicated(["run_id", "case", "launch", "started_utc"], keep=False)
    candidates = frame[alike]
    repeats = candidates.index[candidates.duplicated()]
    return frame.drop(index=repeats).reset_index(drop=True), len(repeats)


def _superseded(frame: pandas.DataFrame) -> int:
    """Good rows in whose place another invocation's stand, as where files were joined."""
    good = frame[frame["status"] == "ok"]
    keys = [good["case"], good["launch"], _effort(good)]
    return int((good["round"].groupby(keys).transform("last") != good["round"]).sum())


def _remarks(path: Path, lines: Lines, frame: pandas.DataFrame, repeated: int) -> list[str]:
    """What a reader of figures from this path must know, a sentence each."""
    remarks = []
    if len(frame) and lines.header is not None and lines.header.renamed:
        remarks.append(f"{path}: {lines.header.renamed}")
    left_out: dict[str, list[int]] = frame.attrs["left_out"]
    if left_out:
        count = sum(map(len, left_out.values()))
        often = sorted(left_out.items(), key=lambda one: -len(one[1]))
        why = [f"{why} ({_numbers(numbers)})" for why, numbers in often[:MOST_SHOWN]]
        why += ["and more"] if len(often) > MOST_SHOWN else []
        are = "is" if count == 1 else "are"
        remarks.append(f"{counted(count, 'row')} of {path} {are} left out: {'; '.join(why)}")
    if superseded := _superseded(frame):
        have = "has" if superseded == 1 else "have"
        remarks.append(
            f"{counted(superseded, 'row')} of {path} {have} the case and launch of a later one, "
            f"which counts instead; files of several runs are compared apart"
        )
    if repeated:
        are = "repeats one above it and is" if repeated == 1 else "repeat others and are"
        remarks.append(f"{counted(repeated, 'row')} of {path} {are} not counted again")
    return remarks


def _numbers(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:MOST_SHOWN]))
    more = len(numbers) - MOST_SHOWN
    return f"{'line' if len(numbers) == 1 else 'lines'} {shown}" + (
        f" and {more:,} more" if more > 0 else ""
    )


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Records of ``read_runs``, for callers that do not use its frame yet."""

    records: list[Record]
    left_out: dict[str, list[int]]
    frame: pandas.DataFrame = field(compare=False)

    @property
    def damaged(self) -> int:
        return sum(map(len, self.left_out.values()))

    def latest(self) -> list[Record]:
        return records_of(latest(self.frame))

    def remarks(self, _: object) -> list[str]:
        remarks: list[str] = self.frame.attrs["remarks"]
        return remarks


def read_rows(path: Path) -> Rows:
    frame = read_runs(path)
    return Rows(records=records_of(frame), left_out=frame.attrs["left_out"], frame=frame)
