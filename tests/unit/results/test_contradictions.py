"""A good row whose figures contradict each other is left out, and its line is named."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from helpers.command_line import record
from helpers.golden import Golden
from helpers.in_process import inside

from spbench.results.record import Record
from spbench.results.runs_csv import column_types, read_runs
from spbench.results.store import Store
from spbench.sweep.run_folder import as_in_run_json
from spbench.workload.case import Case, Cell
from spbench.workload.catalogue import find

ARCHIVE = Path(__file__).parents[3] / "results" / "archive"
SOUND = replace(
    record("dsp", step_ms=123.456789, step_ms_p10=120.123456, step_ms_p90=130.654321),
    compute_ms=100.345678,
    exposed_comm_ms=123.456789 - 100.345678,
    samples_per_s=1e3 / 123.456789,
    tokens_per_s=1e3 * 7 * 11 / 123.456789,
    tokens_per_s_per_rank=1e3 * 7 * 11 / 123.456789 / 2,
    batch=1,
    tokens=7 * 11,
    **dict.fromkeys(("sent_bytes_forward", "predicted_bytes_forward"), 123456),
    **dict.fromkeys(("sent_bytes_backward", "predicted_bytes_backward"), 2 * 123456),
    output_error=1e-6,
    gradient_error=2e-6,
    tolerance=1e-4,
    peak_allocated_bytes=1000,
    peak_reserved_bytes=2000,
    steps_s=1.0,
    launch_s=2.0,
)


def written(folder: Path, *records: Record) -> Path:
    with Store(folder) as store:
        store.copy(records)
    return folder


@pytest.mark.parametrize("folder", sorted(ARCHIVE.glob("*/")), ids=lambda path: path.name)
def test_no_archived_row_is_left_out(folder: Path) -> None:
    """Measured by this version and by older ones."""
    assert read_runs(folder).attrs["left_out"] == {}


@pytest.mark.parametrize("form", [".15g", ".6g", ".4g"])
def test_rounding_leaves_no_row_out(tmp_path: Path, form: str) -> None:
    """As a spreadsheet saves figures, with or without the places that it shows."""
    figures = {name: value for name, value in asdict(SOUND).items() if value is not None}
    shorter: dict[str, Any] = {
        name: float(f"{value:{form}}")
        for name, value in figures.items()
        if column_types()[name] is float
    }
    frame = read_runs(written(tmp_path, SOUND, replace(SOUND, launch=1, **shorter)))
    assert frame.attrs["left_out"] == {}
    assert len(frame) == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"step_ms": 124.0},
        {"step_ms": 124.0, "samples_per_s": None},
        {"tokens": 78},
        {"tokens_per_s_per_rank": 1.0},
        {"compute_ms": 110.0},
        {"sent_bytes_forward": 123457},
        {"dp_size": 3},
        {"step_ms_p10": 125.0},
        {"step_ms_p90": 120.0},
        {"gradient_error": 1e-3},
        {"peak_allocated_bytes": 2001},
        {"steps_s": 3.0},
    ],
)
def test_the_line_and_the_columns_are_named(
    tmp_path: Path, changes: dict[str, Any], golden: Golden
) -> None:
    """A row that failed may have any figures."""
    failed = replace(SOUND, launch=1, status="crash", reason="why", **changes)
    frame = read_runs(written(tmp_path, SOUND, failed, replace(SOUND, launch=2, **changes)))
    golden(frame.attrs["left_out"])
    assert frame["launch"].tolist() == [0, 1]


def launches(**more: Any) -> list[Record]:
    """Three launches of a case, without figures."""
    return [replace(Record.of_case(CASE, **KNOWN), launch=i, **more) for i in range(3)]


KNOWN = {"run_id": "a run", "started_utc": "2030-01-01T00:00:00Z", "status": "ok"}
CASE = Case(workload=find("axes-2d", "verify"), strategy="dsp", ranks=2, device="cpu")
OTHER = CASE.model_copy(update={"strategy": "ulysses"})
CHANGED: list[dict[str, Any]] = [
    {"strategy": "ulysses"},
    {"dtype": "bfloat16"},
    {"mode": "forward"},
    {"checkpointing": "full"},
    {"axes": "time=8xspace=17"},
    {"batch": 2},
    {"execution": "compiled"},
    {"world_size": 4, "sp_size": 4},
]


@pytest.mark.parametrize("status", ["ok", "oom"])
@pytest.mark.parametrize("changes", CHANGED, ids=lambda changes: next(iter(changes)))
def test_a_row_of_another_case_than_its_key_says(
    tmp_path: Path, changes: dict[str, Any], status: str
) -> None:
    """The key is a hash of all of these: rows that have it are alike in them."""
    right = launches()
    wrong = replace(right[1], status=status, **changes)
    frame = read_runs(written(tmp_path, right[0], wrong, right[2]))
    why = f"{next(iter(changes))} contradicts the key of its case"
    assert frame.attrs["left_out"] == {why: [3]}
    assert frame["launch"].tolist() == [0, 2]


@pytest.mark.parametrize("changes", CHANGED, ids=lambda changes: next(iter(changes)))
def test_a_case_that_was_changed_throughout(
    tmp_path: Path, changes: dict[str, Any], golden: Golden
) -> None:
    """run.json names the case of a key: all rows of one may contradict it."""
    folder = written(tmp_path, *launches(**changes))
    with Store(folder) as store:
        store.write_run({"cases": [as_in_run_json(Cell(case=CASE, why_not=None))]})
    golden(read_runs(folder).attrs["left_out"])
    read = json.loads((folder / "run.json").read_text())
    read["cases"][0]["strategy"] = "ring"  # changed as well, so that it has another key
    (folder / "run.json").write_text(json.dumps(read))
    assert read_runs(folder).attrs["left_out"] == {}


def test_rows_that_differ_and_none_knows_which_is_right(tmp_path: Path, golden: Golden) -> None:
    """As many say one thing as another: no row of the key is believed."""
    one, two, _ = launches()
    frame = read_runs(written(tmp_path, one, replace(two, strategy="ulysses")))
    golden(frame.attrs["left_out"])


def test_rows_of_a_workload_are_of_one_dtype(tmp_path: Path, golden: Golden) -> None:
    """A strategy in another dtype than the others, by rows of which each has the same key."""
    others = [
        replace(Record.of_case(case, **KNOWN), launch=i)
        for case in (OTHER, CASE.model_copy(update={"strategy": "ring"}))
        for i in range(2)
    ]
    frame = read_runs(written(tmp_path, *launches(dtype="bfloat16"), *others))
    golden(frame.attrs["left_out"])


def test_compare_names_a_strategy_that_was_changed(tmp_path: Path, golden: Golden) -> None:
    """Rows of dsp that were called ulysses count for neither."""
    first, *rest = launches(step_ms=1.0)
    written(tmp_path, first, *rest)
    text = (tmp_path / "runs.csv").read_text()
    (tmp_path / "runs.csv").write_text(text.replace(",dsp,", ",ulysses,", 1))
    golden(inside("compare", str(tmp_path)).err)


def test_compare_says_it(tmp_path: Path, golden: Golden) -> None:
    """On stderr, before the table, which does without the row."""
    written(tmp_path, SOUND, replace(SOUND, launch=1, steps_s=3.0))
    golden(inside("compare", str(tmp_path)).err)
