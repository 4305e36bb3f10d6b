"""Rows as a DataFrame: what spbench.read_runs promises to a notebook."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas
import pytest

import spbench
from spbench.errors import UNFIT, USAGE, Failure, ResultsError
from spbench.results.find_run import read_latest
from spbench.results.record import COLUMNS, Record
from spbench.results.runs_csv import column_types, frame_of, latest, records_of
from spbench.results.store import Store
from spbench.workload.case import Case
from spbench.workload.catalogue import find

CASE = Case(workload=find("axes-2d", "verify"), strategy="dsp", ranks=2, device="cpu")


def record(**more: Any) -> Record:
    known = {"run_id": "a run", "started_utc": "2030-01-01T00:00:00Z", "status": "ok"}
    return replace(Record.of_case(CASE, **known), **more)


RUN = [
    record(step_ms=1 / 3, sent_bytes_forward=2**62 + 1, reason="no, never"),
    record(launch=1, status="oom"),
]


def test_a_frame_has_the_fields_of_a_record_in_their_types(tmp_path: Path) -> None:
    """Texts, whole numbers and floats; what was not measured is blank in the way of its type."""
    with Store(tmp_path) as store:
        for one in RUN:
            store.append(one)
    frame = spbench.read_runs(tmp_path)
    assert tuple(frame.columns) == COLUMNS
    kinds = {int: "Int64", float: "float64"}
    for name, kind in column_types().items():
        assert str(frame[name].dtype) in (kinds.get(kind, "str"), kinds.get(kind, "object"))
    assert frame["sent_bytes_forward"].tolist()[0] == 2**62 + 1
    assert frame["sent_bytes_forward"].isna().tolist() == [False, True]
    assert frame["step_ms"].tolist()[0] == 1 / 3
    assert frame["reason"].tolist() == ["no, never", ""]
    assert frame.attrs == {"remarks": [], "left_out": {}}
    pandas.testing.assert_frame_equal(spbench.read_runs(str(tmp_path / "runs.csv")), frame)


def test_records_and_frames_are_the_same_thing() -> None:
    """Forth and back; no records are an empty frame of the same columns."""
    assert records_of(frame_of(RUN)) == RUN
    assert records_of(frame_of([])) == []
    assert tuple(frame_of([]).columns) == COLUMNS
    assert len(latest(frame_of([]))) == 0


def test_the_latest_row_of_a_launch_stands_in_its_first_place() -> None:
    """As a retry after other launches."""
    first, other, again = record(status="crash"), record(launch=1), record(step_ms=2.0)
    assert records_of(latest(frame_of([first, other, again]))) == [again, other]


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    """A sentence with its path; exit code 6 in the middle of a run, 2 if the user has named it."""
    sentence = r"cannot read .*runs\.csv: No such file"
    with pytest.raises(ResultsError, match=sentence) as of_a_run:
        spbench.read_runs(tmp_path / "runs.csv")
    with pytest.raises(Failure, match=sentence) as named:
        read_latest(tmp_path / "runs.csv")
    assert (of_a_run.value.code, named.value.code) == (UNFIT, USAGE)


def test_pandas_waits_until_it_is_needed() -> None:
    """Neither the package nor --help loads it."""
    code = "import sys, spbench, spbench.cli.main; print('pandas' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
