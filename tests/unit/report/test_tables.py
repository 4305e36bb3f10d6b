"""Tables: figures in three digits, blanks as dashes, failures in words."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from typing import Any

import pytest
from helpers.example_rows import lines_of
from helpers.golden import Golden
from helpers.terminal import COLOURED, STYLED, Terminal
from hypothesis import given
from hypothesis import strategies as st

from spbench.analysis.compare_strategies import Line
from spbench.report import markdown, strategy_table, tables, units
from spbench.report.fit_width import Grid, by_panel, fitting
from spbench.report.markdown import strategies_part
from spbench.results.hand_over import VerifyResult
from spbench.results.record import Record
from spbench.workload.case import Case
from spbench.workload.catalogue import find

CASE = Case(workload=find("axes-2d", "verify"), strategy="dsp", ranks=2, device="cpu")


def record(strategy: str = "dsp", **more: Any) -> Record:
    known = {"run_id": "a run", "started_utc": "now", "status": "ok"}
    return replace(Record.of_case(CASE, **known), strategy=strategy, **more)


MEASURED = record(
    step_ms=12.345,
    tokens_per_s=1_234_567.0,
    compute_ms=10.0,
    exposed_comm_ms=2.345,
    peak_allocated_bytes=3 * 2**20,
    sent_bytes_forward=2**20,
    sent_bytes_backward=0,
    predicted_bytes_forward=2**21,
    output_error=1e-7,
    gradient_error=3e-6,
    tolerance=1e-4,
)
OOM = record("rsa", status="oom", reason="rank 1: no 3 GiB, [bold]see log[/bold]")


def printed(lines: list[Line], width: int = 200, stream: io.StringIO | None = None) -> list[str]:
    """The table of each panel, as a terminal of that width would choose its columns."""
    grid = fitting(strategy_table.grids_of(lines), width)
    texts = []
    for title, part in by_panel(grid, [line.panel for line in lines]).items():
        into = stream or io.StringIO()
        tables.show_table(tables.console(into), title, part)
        texts.append(into.getvalue())
    return texts


def row_of(text: str, strategy: str) -> list[str]:
    (row,) = [line.split() for line in text.splitlines() if line.split()[:1] == [strategy]]
    return row


def test_a_measured_line() -> None:
    """Each figure has its unit; the gate's error is the larger of two."""
    (text,) = printed(lines_of([MEASURED]))
    cells = "dsp 2 12.3 - 1.00x 1.23M 10 2.35 3 1 0 - 3.0e-06"
    assert row_of(text, "dsp") == cells.split()


def test_a_failed_line_has_its_status_and_no_figures() -> None:
    """The status stands in place of the time; the rest is blank."""
    (text,) = printed(lines_of([MEASURED, OOM]))
    assert row_of(text, "rsa") == ["rsa", "2", "oom", *["-"] * 10]


def test_a_range_needs_launches() -> None:
    """Two launches have a range, one launch has none."""
    lines = lines_of([record(step_ms=1.0), record(launch=1, step_ms=2.0)])
    (text,) = printed(lines)
    assert "1..2*" in row_of(text, "dsp")


def test_a_single_launch_shows_the_scatter_of_its_steps(capsys: pytest.CaptureFixture[str]) -> None:
    """With a mark and its meaning, since it is no interval."""
    strategy_table.show_comparison(lines_of([replace(MEASURED, step_ms_p10=12.0, step_ms_p90=13)]))
    text = capsys.readouterr().out
    assert "12..13#" in row_of(text, "dsp")
    assert text.splitlines()[-1] == strategy_table.STEPS_NOTE


def test_a_wrong_result_says_so_beside_its_error() -> None:
    """The cell has the error and WRONG; or what was wrong where the error is within tolerance."""
    for more, cell in (
        ({"output_error": 3e-3}, "3.0e-03 WRONG"),
        ({"sent_bytes_forward": 8}, "bytes WRONG"),
        ({"repeat_error": 0.5}, "timed step WRONG"),
    ):
        (line,) = lines_of([replace(MEASURED, status="wrong_result", **more)])
        assert strategy_table.gate_cell(line) == cell
    (line,) = lines_of([record()])
    assert strategy_table.gate_cell(line) == "-"


def test_a_whole_step_agrees_only_where_it_does() -> None:
    """A launch that differs from another one names it too, and its gate has passed."""
    gated = {"gated_on": "axes-2d (3 of 5 blocks)", "agreed_with": "rsa on 2 ranks"}
    good = replace(MEASURED, agreement_error=1e-6, **gated)
    differs = replace(MEASURED, status="wrong_result", agreement_error=1.4, **gated)
    said = "gate on axes-2d (3 of 5 blocks): dsp on 2 ranks"
    for row, more in ((good, "; the whole step agrees with rsa on 2 ranks"), (differs, "")):
        assert strategy_table.gate_sentences(lines_of([row])) == [f"{said}{more}"]


def test_workloads_and_kinds_have_tables_of_their_own() -> None:
    """A share is named so in its title, and its bytes are predicted."""
    share = replace(MEASURED, kind="one_gpu_share", step_ms=None, sent_bytes_forward=None)
    other = replace(MEASURED, workload="other")
    made = printed(lines_of([MEASURED, share, other]))
    titles = [text.splitlines()[0] for text in made]
    assert [title.split()[0] for title in titles] == ["axes-2d", "axes-2d", "other"]
    assert ["share" in title for title in titles] == [False, True, False]
    assert row_of(made[1], "dsp")[9] == "2"


def test_a_table_of_shares_has_what_they_compute_at_every_width(golden: Golden) -> None:
    """Columns of steps would all be blank; a failed share has its status in place of its time."""
    share = {"kind": "one_gpu_share", "step_ms": None, "tokens_per_s": None}
    failed = replace(OOM, kind="one_gpu_share")
    lines = lines_of([replace(MEASURED, **share), failed])
    for grid in strategy_table.grids_of(lines):
        assert not {*grid.columns} & {"step ms", "95 %", "speed-up", "tokens/s", "exposed ms"}
        at = grid.columns.index("compute ms")
        assert [row[at] for row in grid.rows] == ["10", "oom"]
    text = markdown.document(strategies_part(lines))
    golden(text)


def test_failures_are_sentences(golden: Golden) -> None:
    """A sentence has strategy, ranks, status and reason of a case that did not finish."""
    partly = [record("ulysses", step_ms=1.0), record("ulysses", launch=1, status="crash")]
    sentences = strategy_table.failures(lines_of([MEASURED, OOM, *partly]))
    golden("\n".join(sentences))


def test_failures_of_several_workloads_name_theirs() -> None:
    """A sentence about one of several tables names its panel."""
    other = replace(OOM, batch=7)
    sentences = strategy_table.failures(lines_of([MEASURED, OOM, other]))
    assert [one.split("): ")[0].rpartition("batch ")[2][0] for one in sentences] == ["1", "7"]


def test_the_comparison_shows_what_failed(
    capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    """Failures stand below the tables, word for word and in one line, brackets and all."""
    long = replace(OOM, reason="rank 1: " + "very " * 60 + "long [/] reason")
    strategy_table.show_comparison(lines_of([MEASURED, long]))
    out, err = capsys.readouterr()
    golden(out)
    assert err == ""


def lines_for_screens() -> list[Line]:
    return lines_of([MEASURED, OOM, record("x" * 50, step_ms=1.0)])


def test_no_escape_codes_outside_a_terminal() -> None:
    """Text is plain and aligned whatever the environment's width; long names are not cut."""
    for text in printed(lines_for_screens()):
        assert "\x1b" not in text
        assert "x" * 50 in text


@pytest.mark.parametrize("columns", [40, 80, 300])
def test_a_narrow_terminal_does_not_break(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    """No line is wider than the terminal, no strategy's name is cut, and no case is missing."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    (made,) = printed(lines_of([MEASURED, OOM]), columns, Terminal())
    text = STYLED.sub("", made)
    assert max(map(len, text.splitlines())) <= columns
    assert row_of(text, "dsp")
    assert row_of(text, "rsa")


def test_what_is_noisy_and_what_failed_has_a_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    """Yellow is unreliable, red has failed; a figure that is good has none."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("NO_COLOR", raising=False)
    noisy = replace(MEASURED, strategy="ring", noisy="a neighbour")
    (text,) = printed(lines_of([MEASURED, OOM, noisy]), stream=Terminal())
    assert "\x1b[33m~12.3\x1b[0m" in text
    assert "\x1b[1;31moom\x1b[0m" in text
    assert COLOURED.search(next(x for x in text.splitlines() if x.startswith(" dsp"))) is None


@pytest.mark.parametrize(
    ("name", "value", "codes"), [("NO_COLOR", "1", COLOURED), ("TERM", "dumb", STYLED)]
)
def test_no_colours_where_none_are_wanted(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, codes: re.Pattern[str]
) -> None:
    """NO_COLOR stops colours, a dumb terminal gets no escape codes at all."""
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv(name, value)
    (text,) = printed(lines_of([MEASURED]), stream=Terminal())
    assert codes.search(text) is None


def verdict(**more: Any) -> VerifyResult:
    known: dict[str, Any] = {
        "strategy": "dsp",
        "workload": "axes-2d",
        "ranks": 2,
        "dtype": "float32",
        "sharpness": 1.0,
        "outcome": "passed",
        "reason": "",
        "output_error": 1e-7,
        "gradient_error": 2e-7,
        "tolerance": 1e-4,
    }
    return VerifyResult(**known | more)


def test_verdicts_are_counted_and_explained(
    capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    """A strategy has one line with its worst error; failed checks are sentences below."""
    tables.show_verdicts(
        [
            verdict(),
            verdict(outcome="WRONG", reason="rank 1: off", output_error=0.5, sharpness=8.0),
            verdict(outcome="declined", reason="too short", output_error=None),
        ]
    )
    out = capsys.readouterr().out
    cells = "dsp float32 2 1 1 1 5.0e-01 2.0e-07 1.0e-04"
    assert row_of(out.split("\ndsp on")[0], "dsp") == cells.split()
    golden(out)


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (units.milliseconds(None), "-"),
        (units.milliseconds(0.01234), "0.0123"),
        (units.milliseconds(999.4), "999"),
        (units.milliseconds(999.7), "1,000"),
        (units.milliseconds(12345.6), "12,346"),
        (units.milliseconds(-2.0), "-2"),
        (units.mebibytes(None), "-"),
        (units.mebibytes(0), "0"),
        (units.mebibytes(2**19), "0.5"),
        (units.mebibytes(999.7 * 2**20), "1,000"),
        (units.mebibytes(2**41), "2,097,152"),
        (units.count_of(None), "-"),
        (units.count_of(0), "0"),
        (units.count_of(999.7), "1k"),
        (units.count_of(999_999), "1M"),
        (units.count_of(1.31e15), "1.31P"),
        (units.ratio(None), "-"),
        (units.ratio(1.005), "1.00x"),
        (units.error(0.0), "0.0e+00"),
        (units.error(None), "-"),
        (units.seconds(59.6), "1 min 0 s"),
        (units.seconds(3.2), "3 s"),
    ],
)
def test_figures_as_people_read_them(shown: str, text: str) -> None:
    """Figures have three digits and the next unit from 999.5; a blank is a dash."""
    assert shown == text


@given(st.floats(min_value=1e-3, max_value=1e17))
def test_no_figure_is_written_with_an_exponent(value: float) -> None:
    """From a microsecond up, times, sizes and counts are plain numbers."""
    shown = [units.milliseconds(value), units.mebibytes(value * 2**20), units.count_of(value)]
    assert [text for text in shown if "e+" in text] == []


def test_a_plain_table_is_the_folded_one_where_both_fit() -> None:
    """The two are equal to the letter, but for blanks at the ends of lines."""
    columns = ("strategy", "ranks", "步")
    cells = [["dsp", "2", "1.5"], ["megatron-sp", "16", "-"]]
    plain, folded = io.StringIO(), io.StringIO()
    grid = Grid(columns=columns, rows=cells)
    tables.show_table(tables.console(plain), "a title", grid)
    tables.console(folded).print(tables.table(grid, "a title"))
    trimmed = [[line.rstrip() for line in text.getvalue().splitlines()] for text in (plain, folded)]
    assert trimmed[0] == trimmed[1]


def test_rates_have_columns_where_there_are_figures() -> None:
    """The widest table has mfu and GB/s if a case knows them; the next has not."""
    known = replace(MEASURED, mfu=0.41, exposed_gb_per_s=42.0)
    assert not {"mfu", "GB/s"} & {*strategy_table.grids_of(lines_of([MEASURED]))[0].columns}
    widest, next_one, *_ = strategy_table.grids_of(lines_of([known]))
    cells = dict(zip(widest.columns, widest.rows[0], strict=True))
    assert (cells["mfu"], cells["GB/s"]) == ("0.41", "42")
    assert not {"mfu", "GB/s"} & {*next_one.columns}


def test_marks_of_a_column_that_is_left_out_are_not_explained() -> None:
    """The scatter of one launch stands beside the interval, which narrow terminals do not have."""
    lines = lines_of([replace(MEASURED, step_ms_p10=12.0, step_ms_p90=13.0)])
    assert strategy_table.mark_notes(lines) == [strategy_table.STEPS_NOTE]
    below = [replace(line, exposed_comm_ms=-0.314) for line in lines]
    assert strategy_table.exposed_cell(below[0]) == "-0.314?"
    assert strategy_table.mark_notes(below)[-1] == strategy_table.BELOW_0_NOTE
    assert strategy_table.mark_notes(below, ["95 %", "exposed ms"]) == []
    assert strategy_table.mark_notes(lines, ["95 %"]) == []
