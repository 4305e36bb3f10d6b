"""Results directories: rows survive writing, and reading survives every damage."""

from __future__ import annotations

import csv
import errno
import gzip
import io
import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spbench.results.record import COLUMNS, Record
from spbench.results.sample import Sample, write_atomically
from spbench.results.store import REQUIRED, ResultsError, Store, read_rows, read_run
from spbench.workload.case import Case
from spbench.workload.catalogue import find

CASE = Case(workload=find("axes-2d", "verify"), strategy="dsp", ranks=2, device="cpu")


def record(**more: Any) -> Record:
    known = {"run_id": "a run", "started_utc": "2030-01-01T00:00:00Z", "status": "ok"}
    return replace(Record.of_case(CASE, **known), **more)


def as_csv(records: list[Record], columns: list[str] | None = None) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns or COLUMNS, extrasaction="ignore")
    writer.writeheader()
    writer.writerows(asdict(one) for one in records)
    return text.getvalue()


def read(folder: Path, content: str | bytes) -> tuple[list[Record], int]:
    path = folder / "runs.csv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    rows = read_rows(folder)
    assert read_rows(path) == rows
    return rows.records, rows.damaged


MIXED = [
    record(step_ms=1 / 3, sent_bytes_forward=0, reason="no, never"),
    record(launch=1, status="crash", reason='rank 1: "quoted", and\tmore', log="logs/x"),
    record(launch=2, output_error=1e-300, tokens_per_s=1.5e12, peak_allocated_bytes=2**60),
    record(launch=3, status="skipped", reason="süß: 16 heads give 16 ranks nothing to do"),
]


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    """Floats to the last bit, blanks as None, zeros as zeros, texts with commas and quotes."""
    with Store(tmp_path) as store:
        for one in MIXED:
            store.append(one)
    rows = read_rows(tmp_path)
    assert (rows.records, rows.damaged) == (MIXED, 0)
    assert rows.records[0].sent_bytes_forward == 0
    assert rows.records[0].sent_bytes_backward is None


@given(
    st.floats(min_value=0, exclude_min=True, allow_infinity=False),
    st.integers(0, 2**62),
    st.text(max_size=30),
)
def test_any_figure_and_any_reason_makes_one_row(
    tmp_path_factory: pytest.TempPathFactory, ms: float, count: int, reason: str
) -> None:
    """Whatever a reason holds, the row is one line; figures are exact."""
    folder = tmp_path_factory.mktemp("rows")
    with Store(folder) as store:
        store.append(record(step_ms=ms, p2p_bytes=count, reason=reason))
        store.append(record(launch=1))
    rows = read_rows(folder)
    assert rows.damaged == 0
    assert [one.step_ms for one in rows.records] == [ms, None]
    assert rows.records[0].p2p_bytes == count
    if not set(reason) & set("\r\n\0"):
        assert rows.records[0].reason == reason


def test_a_text_that_no_encoding_takes_is_kept_readable(tmp_path: Path) -> None:
    """A lone surrogate, as in an undecodable file name, is written as its escape."""
    with Store(tmp_path) as store:
        store.append(record(reason="no file \udcff"))
    assert read_rows(tmp_path).records[0].reason == "no file \\udcff"


CONTENT = as_csv(MIXED).encode()


@settings(max_examples=300)
@given(st.integers(0, len(CONTENT)))
def test_a_file_cut_anywhere_is_read(tmp_path_factory: pytest.TempPathFactory, length: int) -> None:
    """Rows before the cut are whole; of the torn one at most the last cell may be short."""
    folder = tmp_path_factory.mktemp("cut")
    records, damaged = read(folder, CONTENT[:length])
    whole = CONTENT[:length].count(b"\n") - 1
    assert records[: max(0, whole)] == MIXED[: max(0, whole)]
    assert len(records) + damaged <= max(0, whole) + 1
    if len(records) > max(0, whole):
        last = {COLUMNS[-1]: ""}
        assert replace(records[-1], **last) == replace(MIXED[whole], **last)


@settings(max_examples=300)
@given(st.integers(CONTENT.index(b"\n") + 1, len(CONTENT)))
def test_a_torn_file_is_written_on(tmp_path_factory: pytest.TempPathFactory, length: int) -> None:
    """What is appended behind a torn line is read, wherever it was torn, even inside quotes."""
    folder = tmp_path_factory.mktemp("torn")
    (folder / "runs.csv").write_bytes(CONTENT[:length])
    before = read_rows(folder).records
    more = [record(launch=8, reason='with "quotes"'), record(launch=9)]
    with Store(folder) as store:
        for one in more:
            store.append(one)
    assert read_rows(folder).records == before + more


@settings(max_examples=200)
@given(st.integers(0, len(CONTENT)), st.binary(max_size=20), st.integers(0, 60))
def test_any_damage_leaves_the_other_lines(
    tmp_path_factory: pytest.TempPathFactory, at: int, put: bytes, gone: int
) -> None:
    """Rows in lines that the damage does not touch are read; nothing raises."""
    folder = tmp_path_factory.mktemp("damage")
    content = CONTENT[:at] + put + CONTENT[at + gone :]
    records, _ = read(folder, content)
    header = CONTENT.index(b"\n") + 1
    if at < header:
        return
    lines = CONTENT.split(b"\n")
    untouched = [
        one
        for one, line in zip(MIXED, lines[1:], strict=False)
        if (start := CONTENT.index(line)) + len(line) < at or start > at + gone
    ]
    assert [one for one in records if one in untouched] == untouched


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xfe", b"a,b\n1,2\n", b"\0" * 50])
def test_a_file_that_is_no_runs_csv_has_no_rows(tmp_path: Path, content: bytes) -> None:
    """Empty, binary or foreign: no records, and nothing raises."""
    records, _ = read(tmp_path, content)
    assert records == []


def test_a_byte_order_mark_and_blank_lines_do_not_matter(tmp_path: Path) -> None:
    """A file that a spreadsheet has saved is read."""
    saved = "\ufeff" + as_csv(MIXED).replace("\r\n", "\n\n")
    assert read(tmp_path, saved) == (MIXED, 0)


@pytest.mark.parametrize("column", REQUIRED)
def test_a_row_without_what_it_needs_is_counted(tmp_path: Path, column: str) -> None:
    """A blank where every row has something makes it damaged; the other rows stay."""
    broken = asdict(MIXED[1]) | {column: ""}
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS)
    writer.writeheader()
    writer.writerows([asdict(MIXED[0]), broken, asdict(MIXED[2])])
    assert read(tmp_path, text.getvalue()) == ([MIXED[0], MIXED[2]], 1)


@pytest.mark.parametrize(
    ("column", "value"),
    [("status", "fine"), ("launch", "one"), ("step_ms", "fast"), ("p2p_bytes", "1.5")],
)
def test_a_cell_of_another_kind_is_counted(tmp_path: Path, column: str, value: str) -> None:
    """A word for a number, a status that does not exist: the row is damaged."""
    wrong = replace(MIXED[1], **{column: value})
    assert read(tmp_path, as_csv([MIXED[0], wrong])) == ([MIXED[0]], 1)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "NaN"])
def test_a_figure_that_is_none_is_blank(tmp_path: Path, value: str) -> None:
    """NaN and infinity are not measured; the row stays."""
    odd = replace(MIXED[0], step_ms=value)  # type: ignore[arg-type]
    records, damaged = read(tmp_path, as_csv([odd]))
    assert (records[0].step_ms, damaged) == (None, 0)


def test_a_row_with_too_many_or_too_few_cells_is_counted(tmp_path: Path) -> None:
    """A cell more or less than the header has means that something is in the wrong place."""
    header, first, second, *_ = as_csv(MIXED).splitlines()
    lines = [header, first + ",", second.rsplit(",", 1)[0], first]
    assert read(tmp_path, "\n".join(lines)) == ([MIXED[0]], 2)


def test_an_older_file_without_later_columns_is_read(tmp_path: Path) -> None:
    """Columns that came later are blank."""
    older = [name for name in COLUMNS if name not in ("gated_on", "log", "mfu")]
    records, damaged = read(tmp_path, as_csv(MIXED, older))
    assert damaged == 0
    assert records == [replace(one, gated_on="", log="", mfu=None) for one in MIXED]


def test_a_newer_file_with_more_columns_is_read(tmp_path: Path) -> None:
    """Columns that this version does not know are left out, wherever they stand."""
    lines = as_csv(MIXED[:1]).splitlines()
    newer = f"later,{lines[0]},verdict\n7,{lines[1]},faster\n"
    assert read(tmp_path, newer) == (MIXED[:1], 0)


@pytest.mark.parametrize(
    ("column", "damaged"), [("step_ms", 0), ("status", 1), ("world_size", 1), ("batch", 1)]
)
def test_a_renamed_column_never_gives_wrong_figures(
    tmp_path: Path, column: str, damaged: int
) -> None:
    """A figure under a strange name is blank; a row that lost what names it is counted."""
    header, row = as_csv(MIXED[:1]).splitlines()
    renamed = header.replace(f",{column},", f",other_{column},") + "\n" + row
    records, count = read(tmp_path, renamed)
    assert count == damaged
    assert [one.step_ms for one in records] == [None] * (1 - damaged)


def test_the_last_of_two_rows_of_a_launch_counts(tmp_path: Path) -> None:
    """A case that was redone shows what happened last, in its first place."""
    failed, other, redone = record(status="oom"), record(launch=1), record(step_ms=2.0)
    records, _ = read(tmp_path, as_csv([failed, other, redone]))
    assert len(records) == 3
    assert read_rows(tmp_path).latest() == [redone, other]


def test_launches_of_a_case_are_of_one_effort(tmp_path: Path) -> None:
    """That of the last row: quick rows do not count beside full ones, nor full beside quick."""
    quick = [record(effort="quick", launch=i, step_ms=9.0) for i in range(3)]
    full = [record(effort="full", step_ms=5.0), record(case="other", effort="quick", step_ms=1.0)]
    for written, shown in (([*quick, *full], full), ([*full, *quick], [*quick, full[1]])):
        (tmp_path / "runs.csv").write_text(as_csv(written))
        found = read_rows(tmp_path).latest()
        assert sorted(found, key=repr) == sorted(shown, key=repr)


def test_an_older_file_is_resumed_in_its_own_columns(tmp_path: Path) -> None:
    """New rows fit the header that is there, so that all rows can be read."""
    older = [name for name in COLUMNS if name not in ("gated_on", "log")]
    (tmp_path / "runs.csv").write_text(as_csv(MIXED[:1], older))
    with Store(tmp_path) as store:
        store.append(record(launch=5, step_ms=2.5))
    rows = read_rows(tmp_path)
    assert rows.damaged == 0
    assert rows.records == [MIXED[0], record(launch=5, step_ms=2.5)]


@pytest.mark.parametrize("content", ["schema_version,run_i", "a,b,c\n1,2,3\n"])
def test_a_file_without_our_header_is_not_written_on(tmp_path: Path, content: str) -> None:
    """It is said before anything runs, and the lock is given back."""
    (tmp_path / "runs.csv").write_text(content)
    for _ in range(2):
        with pytest.raises(ResultsError, match=r"no column .*case.*use another --out"):
            Store(tmp_path).__enter__()
    assert (tmp_path / "runs.csv").read_text() == content


def test_an_empty_file_gets_a_header(tmp_path: Path) -> None:
    """As one that a killed run created and never filled."""
    (tmp_path / "runs.csv").touch()
    with Store(tmp_path) as store:
        store.append(record())
    assert read_rows(tmp_path).records == [record()]


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    """One run at a time; when the first is done, the next may write."""
    with (
        Store(tmp_path),
        pytest.raises(ResultsError, match="being written by another run"),
        Store(tmp_path),
    ):
        pass
    with Store(tmp_path) as store:
        store.append(record())
    assert len(read_rows(tmp_path).records) == 1


def test_a_file_in_the_way_is_said(tmp_path: Path) -> None:
    """Neither a file nor something below a file can be a results directory."""
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ResultsError, match=f"cannot write to {place}: "):
            Store(place)


def test_a_directory_in_place_of_the_csv_is_said(tmp_path: Path) -> None:
    """Before anything runs, and when it is read."""
    (tmp_path / "runs.csv").mkdir()
    with pytest.raises(ResultsError, match="Is a directory"):
        Store(tmp_path).__enter__()
    with pytest.raises(ResultsError, match="cannot read"):
        read_rows(tmp_path)


@pytest.mark.parametrize("name", ["with space", "äöü", 'quo"te', "a,b", "--out", "a'b;c"])
def test_odd_names_of_directories_work(tmp_path: Path, name: str) -> None:
    """A results directory may be named almost anything."""
    with Store(tmp_path / name) as store:
        store.append(record(run_id=name))
        store.write_run({"argv": [name]})
    assert read_rows(tmp_path / name).records == [record(run_id=name)]


@pytest.mark.parametrize("name", ["line\nbreak", "\udcff", "tab\t"])
def test_names_that_do_not_print_are_refused(tmp_path: Path, name: str) -> None:
    """Logs, rows and messages could not name them; it is said before anything runs."""
    with pytest.raises(ResultsError, match="not a name that prints") as caught:
        Store(tmp_path / name)
    assert str(caught.value).isascii()
    assert list(tmp_path.iterdir()) == []


def disk_is_full(*_: object) -> NoReturn:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_said_with_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both the rows and run.json; earlier rows stay readable."""
    with Store(tmp_path) as store:
        store.append(record())
        monkeypatch.setattr(os, "fsync", disk_is_full)
        for write in (lambda: store.append(record(launch=1)), lambda: store.write_run({})):
            with pytest.raises(ResultsError, match=f"cannot write to {tmp_path}: No space left"):
                write()
    assert read_rows(tmp_path).records[0] == record()


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    """With its path and the reason."""
    with pytest.raises(ResultsError, match=r"cannot read .*runs\.csv: No such file"):
        read_rows(tmp_path)


def test_every_iteration_of_every_rank_is_kept(tmp_path: Path) -> None:
    """samples.csv.gz holds timed and silent passes, and grows with each row."""
    sample = Sample(rank=1, status="ok", step_ms=[1.25, 2.5], compute_ms=[1.0])
    with Store(tmp_path) as store:
        store.append(record(), [sample])
        store.append(record(launch=1, status="oom"))
        store.append(record(launch=2), [sample])
    with gzip.open(tmp_path / "samples.csv.gz", "rt", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["ms"] for row in rows] == ["1.25", "2.5", "1"] * 2
    assert [row["pass"] for row in rows] == ["timed", "timed", "silent"] * 2
    assert {row["launch"] for row in rows} == {"0", "2"}
    assert {row["case"] for row in rows} == {CASE.key}


def test_run_json_keeps_the_history_of_a_resumed_run(tmp_path: Path) -> None:
    """The latest facts, and the command lines before it that made the run."""
    with Store(tmp_path) as store:
        store.write_run({"argv": ["one"], "torch": "1"})
        store.write_run({"argv": ["two"], "torch": "2"})
        store.write_run({"argv": ["three"], "torch": "3"})
    assert read_run(tmp_path) == {
        "argv": ["three"],
        "torch": "3",
        "history": [["one"], ["two"]],
    }


@pytest.mark.parametrize("content", ["", "{", "[1]", "\xff"])
def test_a_damaged_run_json_is_as_none(tmp_path: Path, content: str) -> None:
    """It never stops a run from being resumed or read."""
    (tmp_path / "run.json").write_text(content, encoding="latin-1")
    assert read_run(tmp_path) == {}
    assert read_run(tmp_path / "nowhere") == {}


def test_a_file_is_replaced_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader sees the old text or the new one, also when writing fails."""
    path = tmp_path / "run.json"
    write_atomically(path, json.dumps({"a": 1}))
    assert [one.name for one in tmp_path.iterdir()] == ["run.json"]
    monkeypatch.setattr(os, "fsync", disk_is_full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, json.dumps({"a": 2}))
    assert path.read_text() == '{"a": 1}'
