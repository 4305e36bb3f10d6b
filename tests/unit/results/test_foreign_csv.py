"""runs.csv from spreadsheets, other versions and joined files, and the remarks on it."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pandas
import pytest
from helpers.examples import examples
from helpers.golden import Golden
from helpers.stored_rows import rows_left_out
from hypothesis import given
from hypothesis import strategies as st

from spbench.errors import ResultsError
from spbench.results.record import COLUMNS, REQUIRED, Record
from spbench.results.runs_csv import column_types, latest, read_runs, records_of
from spbench.results.store import Store
from spbench.workload.case import Case
from spbench.workload.catalogue import find

CASE = Case(workload=find("axes-2d", "verify"), strategy="dsp", ranks=2, device="cpu")


def record(**more: Any) -> Record:
    known = {"run_id": "a run", "started_utc": "2030-01-01T00:00:00Z", "status": "ok"}
    return replace(Record.of_case(CASE, **known), **more)


RUN = [
    record(step_ms=1.5, compute_ms=1.75, exposed_comm_ms=-0.25, sent_bytes_forward=2**40),
    record(launch=1, step_ms=2.5, output_error=0.0, p2p_bytes=0, reason="no, never"),
    record(launch=2, status="crash", reason='rank 1: "quoted", and; more', log="logs/x"),
]


def as_csv(records: list[Record], columns: tuple[str, ...] = COLUMNS, **form: Any) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", **form)
    writer.writeheader()
    writer.writerows(asdict(one) for one in records)
    return text.getvalue()


def read(folder: Path, content: str | bytes) -> pandas.DataFrame:
    path = folder / "runs.csv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_runs(path)


def remarks(rows: pandas.DataFrame) -> list[str]:
    """The remarks on the file, "it" in place of its path."""
    return [re.sub(r"\S*runs\.csv", "it", remark) for remark in rows.attrs["remarks"]]


def remarks_of(rows: pandas.DataFrame) -> str:
    return "\n".join(remarks(rows))


def floats_everywhere(content: str) -> str:
    """As pandas writes columns of integers that have blanks."""
    header, *lines = csv.reader(io.StringIO(content))
    whole = [column_types()[name] is int for name in header]
    text = io.StringIO()
    csv.writer(text).writerows(
        [f"{cell}.0" if is_int and cell else cell for is_int, cell in zip(whole, line, strict=True)]
        for line in lines
    )
    return ",".join(header) + "\n" + text.getvalue()


SAVED_AGAIN = {
    "as it was": as_csv(RUN),
    "line feeds": as_csv(RUN, lineterminator="\n"),
    "carriage returns": as_csv(RUN, lineterminator="\r"),
    "byte order mark": "\ufeff" + as_csv(RUN),
    "all quoted": as_csv(RUN, quoting=csv.QUOTE_ALL),
    "whole floats": floats_everywhere(as_csv(RUN)),
    "blank lines": as_csv(RUN).replace("\r\n", "\r\n\r\n\n") + "\n\n",
    "blank cells below": as_csv(RUN) + "," * (len(COLUMNS) - 1) + "\r\n",
    "other order": as_csv(RUN, tuple(reversed(COLUMNS))),
    "a column of one's own": "\n".join(f"{line},mine" for line in as_csv(RUN).splitlines()),
    "spaces in the header": as_csv(RUN).replace(",", " , ", len(COLUMNS) - 1),
    "spaces everywhere": as_csv(RUN[:1]).replace(",", " ,\t ") + as_csv(RUN[1:]),
    "joined, one header": as_csv(RUN[:1]) + as_csv(RUN[1:]),
}
LET_GO = {
    "semicolons": (as_csv(RUN, delimiter=";"), "no header above (lines 1, 2, 3 and 1 more)"),
    "tabs": (as_csv(RUN, delimiter="\t"), "no header above (lines 1, 2, 3 and 1 more)"),
    "decimal commas": (as_csv(RUN).replace(",1.5,", ',"1,5",'), "step_ms is not a valid figure"),
    "joined, two headers": (
        as_csv(RUN[:1]) + as_csv(RUN[1:], tuple(reversed(COLUMNS))),
        "below another header (line 3), split the file there",
    ),
}


@pytest.mark.parametrize("how", LET_GO)
def test_a_form_that_is_not_read_has_a_sentence(tmp_path: Path, how: str, golden: Golden) -> None:
    """Rows of it are left out, never read as others; no row is written behind another form."""
    content, sentence = LET_GO[how]
    rows = read(tmp_path, content)
    assert sentence in remarks_of(rows)
    assert records_of(rows) == [one for one in RUN if one in records_of(rows)]
    # A header whose cells are divided otherwise is no header: it is left out as a line, too.
    lines = len(RUN) + (1 if how in ("semicolons", "tabs") else 0)
    assert len(records_of(rows)) + rows_left_out(rows) == lines
    if how != "decimal commas":
        with pytest.raises(ResultsError) as refused:
            Store(tmp_path).__enter__()
        golden(refused.value)
        assert (tmp_path / "runs.csv").read_bytes() == content.encode()


@pytest.mark.parametrize("how", SAVED_AGAIN)
def test_a_file_that_was_saved_again_is_read(tmp_path: Path, how: str) -> None:
    """Whatever program wrote it: all rows, exact figures, and nothing to remark."""
    rows = read(tmp_path, SAVED_AGAIN[how])
    assert records_of(rows) == RUN
    assert remarks(rows) == []


@pytest.mark.parametrize("how", SAVED_AGAIN)
def test_a_run_is_resumed_in_a_file_that_was_saved_again(tmp_path: Path, how: str) -> None:
    """A new row fits the delimiter and the order of the columns that it finds."""
    (tmp_path / "runs.csv").write_text(SAVED_AGAIN[how], newline="")
    more = record(launch=7, step_ms=3.5, reason="a, b; c\td")
    with Store(tmp_path) as store:
        store.append(more)
    rows = read_runs(tmp_path)
    assert records_of(rows) == [*RUN, more]
    assert rows_left_out(rows) == 0


def test_rounded_digits_are_no_count(tmp_path: Path, golden: Golden) -> None:
    """Bytes are exact; what a spreadsheet has shortened is no longer, and the row says so."""
    content = as_csv(RUN).replace(str(2**40), "1.09951E+12")
    rows = read(tmp_path, content)
    assert records_of(rows) == RUN[1:]
    golden(remarks_of(rows))


def test_a_row_that_stands_there_twice_counts_once(tmp_path: Path, golden: Golden) -> None:
    """Even where the second is written in another way; a remark counts it."""
    assert ",1.5," in as_csv([RUN[0]])
    again = as_csv([RUN[0]]).splitlines()[1].replace(",1.5,", ",1.50,")
    rows = read(tmp_path, as_csv([*RUN, RUN[1]]) + again + "\n")
    assert records_of(rows) == RUN
    assert rows_left_out(rows) == 0
    golden(remarks_of(rows))
    rows = read(tmp_path, as_csv([RUN[0], RUN[0]]))
    golden(remarks_of(rows), "second")


def test_rows_above_the_header_are_counted(tmp_path: Path, golden: Golden) -> None:
    """As where the first lines were lost, or a line was put before it."""
    header, *lines = as_csv(RUN).splitlines()
    rows = read(tmp_path, "\n".join([lines[0], header, *lines[1:]]))
    assert records_of(rows) == RUN[1:]
    golden(remarks_of(rows))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("strategy", "stratgy", "no column 'strategy' (lines 2, 3, 4)"),
        ("status", "x", "no column 'status' (lines 2, 3, 4)"),
        ("world_size", "case", "column 'case' stands there twice, no column 'world_size' (lines"),
    ],
)
def test_a_missing_column_is_named(
    tmp_path: Path, old: str, new: str, expected: str, golden: Golden
) -> None:
    """No row can be used, and none is written behind them."""
    rows = read(tmp_path, as_csv(RUN).replace(f",{old},", f",{new},", 1))
    assert records_of(rows) == []
    assert expected in remarks_of(rows)
    with pytest.raises(ResultsError) as refused:
        Store(tmp_path).__enter__()
    golden(refused.value)


def test_a_renamed_figure_is_named(tmp_path: Path, golden: Golden) -> None:
    """Rows stay without it; columns of an older or newer version are no cause for a remark."""
    rows = read(tmp_path, as_csv(RUN).replace(",compute_ms,", ",computed_ms,", 1))
    assert records_of(rows) == [replace(one, compute_ms=None) for one in RUN]
    golden(remarks_of(rows))


def test_a_status_of_a_newer_version_is_named(tmp_path: Path) -> None:
    """What it means is not known, so its figures are not shown as good ones."""
    rows = read(tmp_path, as_csv([*RUN, record(launch=5, status="preempted")]))
    assert records_of(rows) == RUN
    expected = "1 row of it is left out: status 'preempted' is not known to this version (line 5)"
    assert remarks_of(rows) == expected


def test_many_kinds_of_damage_are_named_in_one_line(tmp_path: Path, golden: Golden) -> None:
    """The most frequent first, with where they stand."""
    lines = as_csv(RUN).splitlines()
    bad = [replace(RUN[0], **{name: -1}) for name in ("step_ms", "batch", "p2p_bytes")]
    rows = read(tmp_path, "\n".join([*lines, *5 * ["torn"], *as_csv(bad).splitlines()[1:]]))
    golden(remarks_of(rows))


def test_rows_without_a_kind_have_the_one_of_their_time(tmp_path: Path) -> None:
    """Older files were measured, or a share of one GPU where nothing could send."""
    columns = tuple(name for name in COLUMNS if name != "kind")
    older = [RUN[0], replace(RUN[1], case="share", backend="fake", step_ms=None)]
    rows = read(tmp_path, as_csv(older, columns))
    assert rows["kind"].tolist() == ["measured", "one_gpu_share"]


FIGURES = [name for name, kind in column_types().items() if kind is not str]


NEGATIVE_TOO = "exposed_comm_ms exposed_comm_ms_low exposed_comm_ms_high gpu_temperature_c"
ZERO_TOO = """launch iterations warmup tflops_per_rank mfu
peak_allocated_bytes peak_reserved_bytes device_used_bytes host_rss_bytes
sent_bytes_forward sent_bytes_backward sent_bytes_gradients
predicted_bytes_forward predicted_bytes_backward predicted_bytes_gradients
all_to_all_bytes all_gather_bytes reduce_scatter_bytes all_reduce_bytes p2p_bytes
output_error gradient_error tolerance load_average others_cores
gpu_clock_mhz gpu_power_w gpu_neighbours launch_s steps_s turns
issue_ms bubble_ms alloc_retries timed_clock_mhz silent_clock_mhz optimizer_bytes
repeat_error agreement_error float32_error hidden_comm_ms memory_limit_bytes slower_share
exposed_gb_per_s cpu_gflop_per_s compiled"""
POSITIVE = """schema_version batch world_size sp_size dp_size step_ms step_ms_p10 step_ms_p90
step_ms_low step_ms_high samples_per_s tokens_per_s tokens_per_s_per_rank compute_ms
tokens hidden heads"""


def test_what_each_figure_may_be_is_known() -> None:
    """A new column is put into one of the three lists."""
    assert sorted(f"{NEGATIVE_TOO} {ZERO_TOO} {POSITIVE}".split()) == sorted(FIGURES)


def row_for_each(columns: list[str], value: Any) -> list[Record]:
    """A row for each column, which has that value there; the first stands in line 2. Each is of a
    case and a workload of its own, which failed, so that no figure contradicts another."""
    named = ("case", "reason", "workload_key")
    own = [{"status": "crash"} | dict.fromkeys(named, column) for column in columns]
    return [
        replace(RUN[1], **more, **{column: value})
        for more, column in zip(own, columns, strict=True)
    ]


def not_valid(column: str) -> str:
    """Why a row is left out that has there what no run measures."""
    return f"{column} is not a valid figure"


@pytest.mark.parametrize("value", [-1, 0, 1, 10**40])
def test_a_figure_out_of_sense_is_damage(tmp_path: Path, value: int) -> None:
    """Negative, zero where one divides by it, or beyond reason; its least value is read."""
    least = dict.fromkeys(NEGATIVE_TOO.split(), -1) | dict.fromkeys(ZERO_TOO.split(), 0)
    made = dict(zip(FIGURES, row_for_each(FIGURES, value), strict=True))
    rows = read(tmp_path, as_csv([*made.values()]))
    is_read = {column: least.get(column, 1) <= value < 10**30 for column in FIGURES}
    assert records_of(rows) == [made[column] for column in FIGURES if is_read[column]]
    assert rows.attrs["left_out"] == {
        not_valid(column): [line] for line, column in enumerate(FIGURES, 2) if not is_read[column]
    }


@pytest.mark.parametrize("value", ["nan", "inf", "-Infinity"])
def test_what_is_no_number_was_not_measured(tmp_path: Path, value: str) -> None:
    """Blank, as NaN of a spreadsheet; without what a row needs it is left out."""
    rows = read(tmp_path, as_csv(row_for_each(FIGURES, value)))
    assert rows.attrs["left_out"] == {
        f"{column} is blank": [line] for line, column in enumerate(FIGURES, 2) if column in REQUIRED
    }
    blank = read(tmp_path, as_csv(row_for_each(FIGURES, "")))
    pandas.testing.assert_frame_equal(rows, blank)
    assert rows.attrs == blank.attrs
    kept = [column for column in FIGURES if column not in REQUIRED]
    for column, one in zip(kept, records_of(rows), strict=True):
        assert getattr(one, column) == (1 if column in ("schema_version", "dp_size") else None)


@pytest.mark.parametrize(
    "value",
    ["1_5", "\u0661\u0665", "\uff11", "1e999", "-1e999", "0x1", "1 5", "nano", "1.5.5", "e5", "."],
)
def test_only_plain_numbers_are_figures(tmp_path: Path, value: str) -> None:
    """Python takes more for one, and what is too large for a float for infinite."""
    columns = ["launch", "p2p_bytes", "step_ms", "exposed_comm_ms"]
    rows = read(tmp_path, as_csv(row_for_each(columns, value)))
    assert rows.attrs["left_out"] == {
        not_valid(column): [line] for line, column in enumerate(columns, 2)
    }


@pytest.mark.parametrize("value", ["15", "+15", "15.", "15.00", "015"])
def test_a_plain_number_is_read_however_it_is_written(tmp_path: Path, value: str) -> None:
    """With a sign, a point, zeros, as a count and as a time; an exponent in a time alone."""
    one = replace(RUN[1], warmup=value, step_ms=value)  # type: ignore[arg-type]
    assert records_of(read(tmp_path, as_csv([one]))) == [replace(RUN[1], warmup=15, step_ms=15.0)]
    one = replace(RUN[1], step_ms=".15E+02")  # type: ignore[arg-type]
    assert records_of(read(tmp_path, as_csv([one]))) == [replace(RUN[1], step_ms=15.0)]


@pytest.mark.parametrize("column", REQUIRED)
def test_bytes_that_are_no_text_are_damage_in_what_names_a_row(tmp_path: Path, column: str) -> None:
    """Another strategy or case would stand there; a reason that is hurt stays readable."""
    known = str(getattr(RUN[1], column))
    hurt = as_csv([replace(RUN[1], **{column: known + "#"})]).encode().replace(b"#", b"\xc3")
    rows = read(tmp_path, hurt)
    assert (records_of(rows), rows_left_out(rows)) == ([], 1)
    rows = read(tmp_path, as_csv(RUN[1:2]).encode().replace(b"never", b"nev\xc3r"))
    assert records_of(rows) == [replace(RUN[1], reason="no, nev\ufffdr")]


@pytest.mark.parametrize("content", ["", "\n\n", "\0" * 99, as_csv([])])
def test_nothing_to_read_is_no_damage(tmp_path: Path, content: str) -> None:
    """Empty, blank, or a header alone."""
    rows = read(tmp_path, content)
    assert (records_of(rows), remarks_of(rows)) == ([], "")


def sound(found: Record) -> bool:
    """Whether every figure is of its column's type and finite, and every text a text."""
    values = {name: getattr(found, name) for name in COLUMNS}
    figures = {name: values.pop(name) for name in FIGURES}
    return all(isinstance(value, str) for value in values.values()) and all(
        value is None or (isinstance(value, column_types()[name]) and abs(value) < 1e31)
        for name, value in figures.items()
    )


BYTES = {how: content.encode() for how, content in SAVED_AGAIN.items()}
BYTES |= {how: content.encode() for how, (content, _) in LET_GO.items()}


@examples(400, 16)
@given(
    st.sampled_from(list(BYTES.values())),
    st.lists(
        st.tuples(
            st.floats(0, 1),
            st.one_of(
                st.binary(max_size=8), st.sampled_from([b",", b";", b'"', b"\n", b"-", b"9"])
            ),
            st.integers(0, 40),
        ),
        max_size=6,
    ),
)
def test_any_bytes_are_read(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, damage: list[tuple[float, bytes, int]]
) -> None:
    """Bytes put in, taken out and changed, anywhere: nothing raises, and figures make sense."""
    for where, put, gone in damage:
        at = round(where * len(content))
        content = content[:at] + put + content[at + gone :]
    rows = read(tmp_path_factory.mktemp("bytes"), content)
    assert all(map(sound, records_of(rows)))
    assert all(remark.isprintable() for remark in remarks(rows))
    assert bool(rows_left_out(rows)) == any("left out" in remark for remark in remarks(rows))


@examples(200, 16)
@given(st.binary(max_size=400))
def test_noise_is_read(tmp_path_factory: pytest.TempPathFactory, noise: bytes) -> None:
    """Before, between and behind rows: they are found, and the noise is counted."""
    folder = tmp_path_factory.mktemp("noise")
    header, *lines = [line.encode() for line in as_csv(RUN).splitlines()]
    assert records_of(read(folder, noise)) == []
    rows = read(folder, b"\n".join([header, lines[0], noise, *lines[1:]]))
    assert records_of(rows) == RUN


def test_runs_that_were_joined_are_remarked(tmp_path: Path, golden: Golden) -> None:
    """Two good launches of one number: only the last can count, as where one is a retry."""
    first, again = record(round="a.0"), record(round="b.0", step_ms=9.0)
    rows = read(tmp_path, as_csv([first, again]))
    assert records_of(latest(rows)) == [again]
    golden("\n".join(remarks(rows)))
    failed = replace(first, status="crash", reason="why")
    assert remarks(read(tmp_path, as_csv([failed, again]))) == []
