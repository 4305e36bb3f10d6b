"""Results directories: rows survive writing, and reading survives every damage."""

from __future__ import annotations

import csv
import errno
import fcntl
import gzip
import io
import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from helpers.examples import examples
from helpers.golden import Golden
from helpers.stored_rows import rows_left_out, stored, stored_latest
from hypothesis import given
from hypothesis import strategies as st

from spbench.errors import ResultsError
from spbench.results.hand_over import Sample, write_atomically
from spbench.results.record import COLUMNS, REQUIRED, Record
from spbench.results.run_json import read_run
from spbench.results.runs_csv import read_runs, records_of
from spbench.results.store import LEAST_FREE_BYTES, Store
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
    rows = read_runs(folder)
    assert read_runs(path).equals(rows)
    return records_of(rows), rows_left_out(rows)


MIXED = [
    record(step_ms=1 / 3, sent_bytes_forward=0, reason="no, never", launch_s=14.5, steps_s=12.25),
    record(launch=1, status="crash", reason='rank 1: "quoted", and\tmore', log="logs/x"),
    record(launch=2, output_error=1e-300, tokens_per_s=1.5e12, peak_allocated_bytes=2**60),
    record(launch=3, status="skipped", reason="süß: 16 heads cannot be split"),
    record(launch=4, launch_s=12350.5, steps_s=12345.678),
]


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    """Floats to the last bit, blanks as None, zeros as zeros, texts with commas and quotes."""
    with Store(tmp_path) as store:
        for one in MIXED:
            store.append(one)
    rows = read_runs(tmp_path)
    assert (records_of(rows), rows_left_out(rows)) == (MIXED, 0)
    assert records_of(rows)[0].sent_bytes_forward == 0
    assert records_of(rows)[0].sent_bytes_backward is None


@examples(100)
@given(st.floats(min_value=1e-30, max_value=1e30), st.integers(0, 2**62), st.text(max_size=30))
def test_any_figure_and_any_reason_makes_one_row(
    tmp_path_factory: pytest.TempPathFactory, ms: float, count: int, reason: str
) -> None:
    """Whatever a reason holds, the row is one line; figures are exact, blanks around are none."""
    folder = tmp_path_factory.mktemp("rows")
    with Store(folder) as store:
        store.append(record(step_ms=ms, p2p_bytes=count, reason=reason))
        store.append(record(launch=1))
    rows = read_runs(folder)
    assert rows_left_out(rows) == 0
    assert [one.step_ms for one in records_of(rows)] == [ms, None]
    assert records_of(rows)[0].p2p_bytes == count
    if not set(reason) & set("\r\n\0"):
        assert records_of(rows)[0].reason == reason.strip()


def test_a_text_that_no_encoding_takes_is_kept_readable(tmp_path: Path, golden: Golden) -> None:
    """A lone surrogate, as in an undecodable file name, is written as its escape."""
    with Store(tmp_path) as store:
        store.append(record(reason="no file \udcff"))
    assert stored(tmp_path)[0].reason == "no file \\udcff"


CONTENT = as_csv(MIXED).encode()
TEXT_ORDER = [*(name for name in COLUMNS if name != "reason"), "reason"]
TEXT_LAST = as_csv(MIXED, TEXT_ORDER).encode()
SHORT: dict[bytes, dict[str, Any]] = {CONTENT: {"turns": None}, TEXT_LAST: {"reason": ""}}
"""By content: its last cell when it is blank."""


@examples(400, 16)
@given(st.sampled_from(list(SHORT)), st.floats(0, 1))
def test_a_file_cut_anywhere_is_read(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, where: float
) -> None:
    """Rows before the cut are whole; of the torn one the last cell is blank, never another."""
    folder = tmp_path_factory.mktemp("cut")
    cut = content[: round(where * len(content))]
    records, damaged = read(folder, cut)
    whole = max(0, cut.replace(b"\r\n", b"\n").replace(b"\r", b"\n").count(b"\n") - 1)
    assert records[:whole] == MIXED[:whole]
    assert len(records) + damaged <= whole + 1
    assert records[whole:] in ([], [replace(one, **SHORT[content]) for one in MIXED[whole:][:1]])


@examples(400, 32)
@given(st.sampled_from(list(SHORT)), st.floats(0, 1))
def test_a_torn_file_is_written_on(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, where: float
) -> None:
    """Behind a torn row or header: what was read is read again, and what is new beside it."""
    folder = tmp_path_factory.mktemp("torn")
    (folder / "runs.csv").write_bytes(content[: round(where * len(content))])
    before = read_runs(folder)
    more = [record(launch=8, reason='with "quotes"', launch_s=2.5, steps_s=1.5), record(launch=9)]
    with Store(folder) as store:
        for one in more:
            store.append(one)
    after = read_runs(folder)
    assert records_of(after) == records_of(before) + more
    assert rows_left_out(after) == rows_left_out(before)


DAMAGED = {
    "cut in a row": CONTENT[:-80],
    "cut in the head": CONTENT[:90],
    "not UTF-8": CONTENT.replace(b"never", b"ne\xffver"),
    "null bytes": CONTENT + bytes(512) + b"\n",
}
WHOLE = {
    "other ends of lines": b"\xef\xbb\xbf" + CONTENT.replace(b"\r\n", b"\n"),
    "the same": CONTENT.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n"),
    "a column less": as_csv(MIXED, [name for name in COLUMNS if name != "log"]).encode(),
    "empty": b"",
}
KEPT_AS = {r"damaged-2\S+": "damaged-WHEN"}


@pytest.mark.parametrize(
    ("content", "is_damaged"),
    [*((text, True) for text in DAMAGED.values()), *((text, False) for text in WHOLE.values())],
    ids=[*DAMAGED, *WHOLE],
)
def test_a_damaged_file_is_kept_and_named(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    content: bytes,
    is_damaged: bool,
    golden: Golden,
) -> None:
    """Before anything is written behind it; a file that only looks otherwise is no damaged one."""
    path = tmp_path / "runs.csv"
    for number in range(2):
        path.write_bytes(content)
        with Store(tmp_path) as store:
            store.append(record(launch=8))
        kept = sorted(tmp_path.glob("runs.csv.damaged-2*"))
        said = capsys.readouterr().err
        if not is_damaged:
            assert (kept, said) == ([], "")
            return
        assert [one.read_bytes() for one in kept] == [content] * (number + 1)
        golden(said, hide=KEPT_AS)
    assert stored(tmp_path)[-1] == record(launch=8)


@pytest.mark.parametrize("cell", ['"a, b', '"a, b"', '"say ""hi', '"say ""', '"', "a", ""])
def test_a_last_cell_that_is_torn_reads_as_blank(tmp_path: Path, cell: str) -> None:
    """Before a row is written behind it, and after; a comma in it leaves the row out."""
    line = as_csv(MIXED[1:2], TEXT_ORDER).splitlines()[1]
    torn = line[: line.index('"rank 1')]
    records, damaged = read(tmp_path, as_csv([], TEXT_ORDER) + torn + cell)
    assert records == ([] if "," in cell else [replace(MIXED[1], reason="")])
    assert damaged == int("," in cell)
    with Store(tmp_path) as store:
        store.append(record(launch=8))
    rows = read_runs(tmp_path)
    assert (records_of(rows), rows_left_out(rows)) == ([*records, record(launch=8)], damaged)


@examples(200)
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
    lines = [header, first + ",", second.rsplit(",", 1)[0], first, ""]
    assert read(tmp_path, "\n".join(lines)) == ([MIXED[0]], 2)


def test_an_older_file_without_later_columns_is_read(tmp_path: Path) -> None:
    """Columns that came later are blank."""
    later = dict.fromkeys(("mfu", "tokens", "hidden", "heads")) | {"gated_on": "", "log": ""}
    older = [name for name in COLUMNS if name not in later]
    records, damaged = read(tmp_path, as_csv(MIXED, older))
    assert damaged == 0
    assert records == [replace(one, **later) for one in MIXED]


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
    assert stored_latest(tmp_path) == [redone, other]


def test_launches_of_a_case_are_of_one_effort(tmp_path: Path) -> None:
    """Full as soon as a full one succeeded, else that of the last row; never both."""
    quick = [record(effort="quick", launch=i, step_ms=9.0) for i in range(3)]
    full, failed = record(effort="full", step_ms=5.0), record(effort="full", status="oom")
    other = record(case="other", effort="quick", step_ms=1.0)
    for written, shown in (
        ([*quick, full, other], [full, other]),
        ([full, other, *quick], [full, other]),
        ([full, other, *quick, failed], [failed, other]),
        ([*quick, failed, other], [failed, other]),
        ([failed, other, *quick], [*quick, other]),
    ):
        (tmp_path / "runs.csv").write_text(as_csv(written))
        found = stored_latest(tmp_path)
        assert sorted(found, key=repr) == sorted(shown, key=repr)


def test_an_older_file_is_resumed_with_all_columns(tmp_path: Path, golden: Golden) -> None:
    """It gets the columns that it lacks, so that a new row keeps effort and round."""
    older = [name for name in COLUMNS if name not in ("gated_on", "log", "effort", "round")]
    content = as_csv(MIXED[:2], older) + "torn\n\n"
    (tmp_path / "runs.csv").write_text(content)
    more = [record(launch=i, step_ms=2.5, effort="quick", round=f"s.{i}") for i in (5, 6)]
    with Store(tmp_path) as store:
        for one in more:
            store.append(one)
    rows = read_runs(tmp_path)
    golden(rows.attrs["left_out"])
    old = [replace(one, effort="", log="") for one in MIXED[:2]]
    assert records_of(rows) == [*old, *more]
    assert (tmp_path / "runs.csv").read_text().count("schema_version") == 1


@pytest.mark.parametrize("content", ["schema_version,run_i\n", "a,b,c\n1,2,3\n", "a,b,c", "12,13"])
def test_a_file_without_our_header_is_not_written_on(
    tmp_path: Path, content: str, golden: Golden
) -> None:
    """The message comes before anything runs, and the lock is given back."""
    (tmp_path / "runs.csv").write_text(content)
    for _ in range(2):
        with pytest.raises(ResultsError) as refused:
            Store(tmp_path).__enter__()
        golden(refused.value)
    assert (tmp_path / "runs.csv").read_text() == content


def test_an_empty_file_gets_a_header(tmp_path: Path) -> None:
    """As one that a killed run created and never filled."""
    (tmp_path / "runs.csv").touch()
    with Store(tmp_path) as store:
        store.append(record())
    assert stored(tmp_path) == [record()]


def test_a_second_writer_is_refused(tmp_path: Path, golden: Golden) -> None:
    """One run at a time; when the first is done, the next may write."""
    with Store(tmp_path), pytest.raises(ResultsError) as refused, Store(tmp_path):
        pass
    golden(refused.value)
    with Store(tmp_path) as store:
        store.append(record())
    assert len(stored(tmp_path)) == 1


def test_a_file_in_the_way_is_reported(tmp_path: Path, golden: Golden) -> None:
    """Neither a file nor something below a file can be a results directory."""
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ResultsError) as refused:
            Store(place)
        golden(refused.value, place.name)


def test_a_directory_in_place_of_the_csv_is_reported(tmp_path: Path) -> None:
    """Before anything runs, and when it is read."""
    (tmp_path / "runs.csv").mkdir()
    with pytest.raises(ResultsError, match="Is a directory"):
        Store(tmp_path).__enter__()
    with pytest.raises(ResultsError, match="cannot read"):
        read_runs(tmp_path)


@pytest.mark.parametrize("name", ["with space", "äöü", 'quo"te', "a,b", "--out", "a'b;c"])
def test_odd_names_of_directories_work(tmp_path: Path, name: str) -> None:
    """A results directory may be named almost anything."""
    with Store(tmp_path / name) as store:
        store.append(record(run_id=name))
        store.write_run({"argv": [name]})
    assert stored(tmp_path / name) == [record(run_id=name)]


@pytest.mark.parametrize("name", ["line\nbreak", "\udcff", "tab\t"])
def test_names_that_do_not_print_are_refused(tmp_path: Path, name: str, golden: Golden) -> None:
    """Logs, rows and messages could not name them; the message comes before anything runs."""
    with pytest.raises(ResultsError) as caught:
        Store(tmp_path / name)
    golden(caught.value)
    assert str(caught.value).isascii()
    assert list(tmp_path.iterdir()) == []


def disk_is_full(*_: object) -> NoReturn:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_reported_with_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """Both the rows and run.json; earlier rows stay readable."""
    with Store(tmp_path) as store:
        store.append(record())
        monkeypatch.setattr(os, "fsync", disk_is_full)
        for write in (lambda: store.append(record(launch=1)), lambda: store.write_run({})):
            with pytest.raises(ResultsError) as refused:
                write()
            golden(refused.value)
    assert stored(tmp_path)[0] == record()


def free(left_bytes: int, total_bytes: int = 2**40) -> Any:
    usage = SimpleNamespace(total=total_bytes, free=left_bytes)
    return lambda _: usage


def test_a_disk_that_is_nearly_full_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the folder and how much is free; one that tells no size is given a chance."""
    with Store(tmp_path) as store:
        store.check_room()
        monkeypatch.setattr(shutil, "disk_usage", free(LEAST_FREE_BYTES - 2**19))
        said = rf"the disk of {tmp_path} has 15\.5 MiB free, and a launch needs 16; make room"
        with pytest.raises(ResultsError, match=said):
            store.check_room()
        monkeypatch.setattr(shutil, "disk_usage", free(LEAST_FREE_BYTES))
        store.check_room()
        monkeypatch.setattr(shutil, "disk_usage", free(0, 0))
        store.check_room()


def test_a_folder_that_vanished_is_reported(tmp_path: Path, golden: Golden) -> None:
    """Before a launch, and when a row is to be written: it is not made anew without its rows."""
    folder = tmp_path / "run"
    with Store(folder) as store:
        store.append(record())
        folder.rename(tmp_path / "away")
        for write in (store.check_room, lambda: store.append(record(launch=1))):
            for made_anew in (False, True):
                folder.mkdir() if made_anew else None
                with pytest.raises(ResultsError) as refused:
                    write()
                golden(refused.value, "made anew" if made_anew else "gone")
            folder.rmdir()
    assert stored(tmp_path / "away") == [record()]


def test_a_folder_that_was_locked_away_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """Read-only since the run began."""
    with Store(tmp_path) as store:
        monkeypatch.setattr(os, "access", lambda *_: False)
        with pytest.raises(ResultsError) as refused:
            store.check_room()
        golden(refused.value)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, golden: Golden
) -> None:
    """Also where a file might stand in for a lock: it would outlive a killed run."""

    def no_lock(*_: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", no_lock)
        for _ in range(2):
            with pytest.raises(ResultsError) as refused:
                Store(tmp_path).__enter__()
            golden(refused.value)
    with Store(tmp_path) as store:
        store.append(record())


def test_a_link_that_leads_nowhere_is_reported(tmp_path: Path, golden: Golden) -> None:
    """It can be no folder."""
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ResultsError) as refused:
        Store(tmp_path / "link")
    golden(refused.value)


def test_a_missing_file_is_reported(tmp_path: Path, golden: Golden) -> None:
    """With its path and the reason."""
    with pytest.raises(ResultsError) as refused:
        read_runs(tmp_path)
    golden(refused.value)


def test_every_iteration_of_every_rank_is_kept(tmp_path: Path) -> None:
    """samples/ holds a file a launch: timed and silent passes."""
    sample = Sample(rank=1, status="ok", step_ms=[1.25, 2.5], compute_ms=[1.0])
    with Store(tmp_path) as store:
        store.append(record(), [sample])
        store.append(record(launch=1, status="oom"))
        store.append(record(launch=2), [sample])
    for launch in (0, 2):
        path = tmp_path / "samples" / f"{CASE.key}-launch{launch}.csv.gz"
        with gzip.open(path, "rt", newline="") as file:
            rows = list(csv.DictReader(file))
        assert [row["step_ms"] for row in rows] == ["1.25", "2.5"]
        assert [row["silent_ms"] for row in rows] == ["1", ""]
        assert {row["launch"] for row in rows} == {str(launch)}
        assert {row["case"] for row in rows} == {CASE.key}
    assert len(list((tmp_path / "samples").iterdir())) == 2


def test_run_json_keeps_the_history_of_a_resumed_run(tmp_path: Path) -> None:
    """The latest facts, and the command lines before it that made the run."""
    with Store(tmp_path) as store:
        store.write_run({"argv": ["one"], "torch": "1"})
        store.write_run({"argv": ["two"], "torch": "2"})
        store.write_run({"argv": ["three"], "torch": "3"})
    assert read_run(tmp_path) == {"argv": ["three"], "torch": "3", "history": [["one"], ["two"]]}


@pytest.mark.parametrize("content", ["", "{", "[1]", "\xff"])
def test_a_damaged_run_json_is_as_none(tmp_path: Path, content: str) -> None:
    """It never stops a run from being resumed or read."""
    (tmp_path / "run.json").write_text(content, encoding="latin-1")
    assert read_run(tmp_path) == {}
    assert read_run(tmp_path / "nowhere") == {}


def test_a_damaged_run_json_is_kept_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    """A file that was cut, and one with an entry that is no case."""
    path = tmp_path / "run.json"
    damage = {
        "cut": '{"argv": ["one"',
        "an entry that is no case": '{"argv": ["one"], "cases": [7]}',
    }
    for name, damaged in damage.items():
        path.write_text(damaged)
        with Store(tmp_path) as store:
            store.write_run({"argv": ["two"]})
            golden(capsys.readouterr().err, name, hide={r"damaged-[\w-]+": "damaged-WHEN"})
            store.write_run({"argv": ["three"]})
            assert capsys.readouterr().err == ""
    kept = {one.read_text() for one in tmp_path.glob("run.json.damaged-*")}
    assert kept == {*damage.values()}


DEEP = "[" * 400 + "]" * 400
ODD = {
    "not to be parsed": "[" * 100_000,
    "not to be written": f'{{"argv": {DEEP}, "more": {DEEP}, "history": [{DEEP}]}}',
    "deep cases": f'{{"cases": [{{"key": "a", "launch": 0, "x": {DEEP}}}]}}',
    "other kinds": '{"cases": 7, "history": "none", "argv": {"a": 1}, "reference": ["a"]}',
    "objects": '{"cases": {"key": "a"}, "history": {"a": 1}, "argv": 5, "reference": {}}',
    "nulls": '{"cases": null, "history": null, "argv": null, "reference": null}',
    "odd cases": """{"cases": [null, 7, "a", [], {}, {"key": "a"}, {"key": [], "launch": 0},
        {"key": "a", "launch": {}}, {"key": "a", "launch": true}], "history": [null, 7, [7]]}""",
    "long numbers": '{"argv": ' + "1" * 5000 + "}",
    "no number": '{"cases": [{"key": "a", "launch": NaN}], "history": [Infinity]}',
}


@pytest.mark.parametrize("how", ODD)
def test_a_run_with_an_odd_run_json_is_resumed(tmp_path: Path, how: str) -> None:
    """What has not the shape that it must have is dropped, and the run goes on."""
    (tmp_path / "run.json").write_text(ODD[how])
    assert {name: value for name, value in read_run(tmp_path).items() if value} == {}
    facts = {"argv": ["new"], "cases": [{"key": "b", "launch": 1, "strategy": "dsp"}]}
    with Store(tmp_path) as store:
        store.write_run(facts)
        store.write_run({"argv": ["newer"]})
    assert read_run(tmp_path) == facts | {"argv": ["newer"], "history": [["new"]]}


def test_what_is_sound_in_an_odd_run_json_stays(tmp_path: Path) -> None:
    """A case or command that has another shape does not take the others with it."""
    sound = {"argv": ["old"], "cases": [{"key": "a", "launch": 0}], "history": [["oldest"]]}
    odd = {"cases": [7, *sound["cases"], {"key": "a"}], "history": [None, *sound["history"]]}
    (tmp_path / "run.json").write_text(json.dumps(sound | odd | {"reference": "dsp"}))
    assert read_run(tmp_path) == sound | {"reference": "dsp"}
    with Store(tmp_path) as store:
        store.write_run({"argv": ["new"], "cases": [{"key": "b", "launch": 0}]})
    assert read_run(tmp_path) == {
        "argv": ["new"],
        "cases": [{"key": "a", "launch": 0}, {"key": "b", "launch": 0}],
        "history": [["oldest"], ["old"]],
    }


def test_a_file_is_replaced_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """A reader sees the old text or the new one, also when writing fails."""
    path = tmp_path / "run.json"
    write_atomically(path, json.dumps({"a": 1}))
    assert [one.name for one in tmp_path.iterdir()] == ["run.json"]
    monkeypatch.setattr(os, "fsync", disk_is_full)
    with pytest.raises(OSError) as refused:
        write_atomically(path, json.dumps({"a": 2}))
    golden(refused.value)
    assert path.read_text() == '{"a": 1}'


DEFERRED = """
import os, signal, sys, threading, time
from pathlib import Path
from spbench.errors import signals_held
threading.Thread(target=threading.Event().wait, daemon=True).start()
def end(*_):
    raise KeyboardInterrupt
signal.signal(signal.SIGTERM, end)
try:
    with signals_held():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.2)
        Path(sys.argv[1]).write_text("whole")
except KeyboardInterrupt:
    sys.exit(7)
"""


def test_a_signal_waits_until_a_row_is_written(tmp_path: Path) -> None:
    """Also where the process has other threads."""
    done = subprocess.run([sys.executable, "-c", DEFERRED, tmp_path / "row"], check=False)
    assert done.returncode == 7
    assert (tmp_path / "row").read_text() == "whole"
