"""runs.csv as a DataFrame: a row a launch, a column a field of Record, units in the names.

Sound rows are used; other lines are counted, and a sentence says why. Nothing raises but
ResultsError, for a file that cannot be read at all.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas

from spbench.errors import ResultsError
from spbench.results.cell_values import are_distinct, as_column, values_of
from spbench.results.contradictions import contradict_their_case, contradictions
from spbench.results.csv_lines import Lines, faults_of, lines_of, text_of
from spbench.results.record import COLUMNS, DEFAULTS, Record
from spbench.results.run_json import folder_of_run, read_run
from spbench.text import counted

OLDEST = {"schema_version": 1, "dp_size": 1}
"""Values of rows that were written before there were these columns."""
SHARE_BACKEND = "fake"
"""Backend of a share of one GPU, which sends nothing."""
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
    cases = read_run(folder_of_run(file)).get("cases", [])
    every, left_out = _sound_rows(lines, cases)
    frame = _without_repeats(every)
    faults = faults_of(lines.columns).values()
    remarks = [
        *([f"{path}: {', '.join(faults)}"] if faults and len(frame) else []),
        *_left_out_remark(path, left_out),
        *_superseded_remark(path, frame),
        *_repeats_remark(path, len(every) - len(frame)),
    ]
    frame.attrs |= {"left_out": left_out, "remarks": remarks}
    return frame


def frame_of(records: Iterable[Record]) -> pandas.DataFrame:
    """The frame that ``read_runs`` would return for these records."""
    records = list(records)
    frame = pandas.DataFrame(
        {name: as_column(name, (getattr(record, name) for record in records)) for name in COLUMNS}
    )
    frame.attrs |= {"left_out": {}, "remarks": []}
    return frame


def records_of(frame: pandas.DataFrame) -> list[Record]:
    """The rows of a frame as records, None for what was not measured.

    A column that is blank throughout, as most are, is left to the default of its field; and the
    constructor of frozen data calls a function for each field: four times as long.
    """
    bare = pandas.DataFrame(frame)  # what a frame says beside its cells is copied with each column
    columns: dict[str, Any] = {name: bare[name] for name in COLUMNS}
    cells = {name: x.to_numpy(object, na_value=None).tolist() for name, x in columns.items()}
    filled = [name for name in COLUMNS if cells[name].count(DEFAULTS[name]) < len(frame)]
    records = [object.__new__(Record) for _ in range(len(frame))]
    for record, row in zip(records, zip(*map(cells.get, filled), strict=True), strict=True):
        vars(record).update(zip(filled, row, strict=True))
    return records


def latest(frame: pandas.DataFrame) -> pandas.DataFrame:
    """One row for each case and launch: the last that was written, in the place of the first.

    Launches of a case are of one effort: full if a full one succeeded, else that of its last
    row that was not interrupted. So quick launches never hide a full run.
    """
    effort, case = _effort(frame), frame["case"]
    if effort.nunique() == 1 and are_distinct(case, frame["launch"]):
        return frame.reset_index(drop=True)
    of_case = effort.where(frame["status"] != "interrupted").groupby(case).last()
    of_case = of_case.fillna(effort.groupby(case).first())
    of_case[case[(frame["status"] == "ok") & (effort == "full")].unique()] = "full"
    shown = frame[effort == case.map(of_case)]
    launch = ["case", "launch"]
    place = shown.groupby(launch, sort=False).ngroup()
    last = shown.assign(place=place).drop_duplicates(launch, keep="last")
    return last.sort_values("place", ignore_index=True).drop(columns="place")


def _effort(frame: pandas.DataFrame) -> "pandas.Series[str]":
    """Name of each row's measurement budget; rows of older versions have none, and were full."""
    return frame["effort"].where(frame["effort"] != "", "full")


def _sound_rows(
    lines: Lines, cases: Sequence[Mapping[str, Any]]
) -> tuple[pandas.DataFrame, dict[str, list[int]]]:
    """The rows whose cells are valid and agree, with those of ``cases`` too, and the numbers of the
    other lines by the reason. A text that a column has many times, as most have, is converted
    once."""
    cells = np.array([*lines.rows.values()], dtype=object)
    cells = cells.reshape(len(lines.rows), len(lines.columns))
    columns: dict[str, Any] = {}
    why = np.full(len(cells), "", dtype=object)
    for name in COLUMNS:
        is_known = lines.columns.count(name) == 1
        texts = cells[:, lines.columns.index(name)] if is_known else np.full_like(why, "")
        places, distinct = (
            pandas.factorize(texts) if texts.any() else (np.zeros(len(why), int), [""])
        )
        values, faults = values_of(name, distinct)
        values = [OLDEST.get(name) if value is None else value for value in values]
        columns[name] = as_column(name, values).take(places)
        if any(faults):
            why = np.where(why == "", np.array(faults, dtype=object)[places], why)
    frame = _with_kinds(pandas.DataFrame(columns))
    why = np.where(why == "", contradictions(frame), why)
    sound = frame[why == ""].reset_index(drop=True)
    why[why == ""] = contradict_their_case(sound, cases)
    reasons = why.tolist()
    left_out = {reason: list(numbers) for reason, numbers in lines.left_out.items()}
    for number, reason in zip(lines.rows, reasons, strict=True):
        if reason:
            left_out.setdefault(reason, []).append(number)
    if any(reasons):
        frame = frame.loc[[not reason for reason in reasons]].reset_index(drop=True)
    return frame, left_out


def _with_kinds(frame: pandas.DataFrame) -> pandas.DataFrame:
    """The rows with a kind: older files have none, and name the backend of a share."""
    if (frame["kind"] != "").all():
        return frame
    is_share = frame["backend"] == SHARE_BACKEND
    older = pandas.Series("measured", frame.index).mask(is_share, "one_gpu_share")
    return frame.assign(kind=frame["kind"].mask(frame["kind"] == "", older))


def _without_repeats(frame: pandas.DataFrame) -> pandas.DataFrame:
    """The rows without those that are exactly as the one above them of the same launch. As one
    further above they may be: a row may be taken back, and be written once more."""
    names = ["run_id", "case", "launch", "started_utc"]
    if are_distinct(*(frame[name] for name in names)):
        return frame  # nearly always, and much faster
    place = pandas.Series(range(len(frame)), frame.index)
    above = place.groupby([frame["case"], frame["launch"]]).shift().fillna(-1).astype(int)
    again = frame.duplicated().to_numpy() & (above >= 0).to_numpy()
    cells = frame.astype(object)
    ours, theirs = cells[again].reset_index(drop=True), cells.iloc[above[again]]
    is_same = (ours == theirs.reset_index(drop=True)) | (ours.isna() & theirs.isna().to_numpy())
    again[again] = is_same.fillna(False).all(axis=1).to_numpy(bool)
    return frame[~again].reset_index(drop=True)


def _left_out_remark(path: Path, left_out: Mapping[str, Sequence[int]]) -> Iterable[str]:
    """How many rows cannot be used; the most frequent reasons first, with their lines."""
    if count := sum(map(len, left_out.values())):
        often = sorted(left_out.items(), key=lambda item: -len(item[1]))
        why = [f"{reason} ({_lines(numbers)})" for reason, numbers in often[:MOST_SHOWN]]
        why += ["and more"] if len(often) > MOST_SHOWN else []
        are = "is" if count == 1 else "are"
        yield f"{counted(count, 'row')} of {path} {are} left out: {'; '.join(why)}"


def _lines(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:MOST_SHOWN]))
    more = len(numbers) - MOST_SHOWN
    word = "line" if len(numbers) == 1 else "lines"
    return f"{word} {shown}" + (f" and {more:,} more" if more > 0 else "")


def _superseded_remark(path: Path, frame: pandas.DataFrame) -> Iterable[str]:
    """How many good rows are followed by another invocation's, as where files were joined."""
    good = frame[frame["status"] == "ok"]
    keys = [good["case"], good["launch"], _effort(good)]
    if are_distinct(*keys):
        return
    if count := int((good["round"].groupby(keys).transform("last") != good["round"]).sum()):
        yield (
            f"{counted(count, 'row')} of {path} {'has' if count == 1 else 'have'} the case and "
            "launch of a later one, which counts instead; files of several runs are compared apart"
        )


def _repeats_remark(path: Path, count: int) -> Iterable[str]:
    if count:
        are = "repeats one above it and is" if count == 1 else "repeat others and are"
        yield f"{counted(count, 'row')} of {path} {are} not counted again"
