"""A changed digit or word is noticed, and its row left out, where another place contradicts it."""

from __future__ import annotations

import csv
import io
import itertools
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from helpers.in_process import inside

from spbench.launch.launcher import LaunchResult
from spbench.results.cell_values import column_types
from spbench.results.iterations import write_samples
from spbench.results.reading import read_runs
from spbench.results.record import Record
from spbench.results.sample import Sample
from spbench.results.store import Store
from spbench.strategies.names import BUILT_IN
from spbench.strategies.registry import load
from spbench.sweep.output_folder import as_in_run_json
from spbench.sweep.row import columns_of
from spbench.workload.case import Case, Cell
from spbench.workload.catalogue import find
from spbench.workload.config_names import names
from spbench.workload.sent_counts import by_call, by_op, by_phase, count

ARCHIVE = Path(__file__).parents[3] / "results" / "archive"
FREE = (
    *("run_id", "started_utc", "round", "git_commit", "gated_on", "warmup", "tolerance"),
    *("peak_allocated_bytes", "output_error", "gradient_error"),
)
"""Columns of which nothing else in a run on CPUs knows the figures, or only their bounds."""
SIX_DIGITS = ("step_ms_p10", "step_ms_p90")
"""Columns that the samples contradict, which have six digits."""


def cases() -> Iterator[Case]:
    """Every strategy on every second workload of ``verify``, on 2 or 3 ranks: even or uneven.

    All would be more launches than those whose samples are opened.
    """
    workloads = [find(name, "verify") for name in names("verify")]
    for row, column in itertools.product(enumerate(workloads), enumerate(BUILT_IN)):
        (i, workload), (j, strategy) = row, column
        ranks = 2 + i % 2
        if (i + j) % 2 == 0 and load(strategy).why_not(workload, ranks) is None:
            yield Case(workload=workload, strategy=strategy, ranks=ranks, device="cpu")


def samples_of(case: Case, chance: random.Random) -> list[Sample]:
    """Times with noise, and exactly the bytes that each rank is to send."""
    transfers = load(case.strategy).traffic(case.workload, case.ranks)
    sent = [count(transfers, rank) for rank in range(case.ranks)]
    return [
        Sample(
            rank=rank,
            status="ok",
            backend="gloo",
            device_name="a CPU",
            versions={"torch": "2.11.0"},
            warmup=5,
            stopped_by="precision",
            step_ms=[chance.gauss(100, 3) for _ in range(10)],
            compute_ms=[chance.gauss(80, 3) for _ in range(10)],
            sent_by_phase=by_phase(sent[rank]),
            predicted_by_phase=by_phase(sent[rank]),
            sent_by_op=by_op(sent[rank]),
            collectives=by_call(dict.fromkeys(sent[rank], 12)),
            peak_allocated_bytes=chance.randrange(2**30),
            output_error=chance.random() * 1e-6,
            gradient_error=chance.random() * 1e-6,
            tolerance=1e-4,
        )
        for rank in range(case.ranks)
    ]


def simulated(folder: Path, launches: int = 2, most: int | None = None) -> Path:
    """A run of all cases or the first, by the code that makes rows of samples."""
    chance = random.Random(7)
    planned = [
        case.model_copy(update={"launch": launch})
        for launch in range(launches)
        for case in itertools.islice(cases(), most)
    ]
    with Store(folder) as store:
        entries = [as_in_run_json(Cell(case=case, why_not=None)) for case in planned]
        store.write_run({"argv": ["spbench", "run"], "cases": entries})
        rows = []
        for case in planned:
            samples = samples_of(case, chance)
            columns = columns_of(case, LaunchResult(ok=True), samples, "ok", 1.0)
            columns |= {"run_id": "a run", "started_utc": "2030-01-01T00:00:00Z"}
            columns |= {"round": f"20300101T000000Z-abc123.{case.launch}", "status": "ok"}
            rows.append((Record.of_case(case, **columns), samples))
        store.copy(record for record, _ in rows)
        for record, samples in rows:
            write_samples(folder, record, samples)
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return simulated(tmp_path_factory.mktemp("run"))


def cells_of(run: Path) -> list[list[str]]:
    """The header and the rows of a run's file."""
    return list(csv.reader(io.StringIO((run / "runs.csv").read_text())))


def left_out(run: Path, cells: list[list[str]]) -> Mapping[int, str]:
    """Why lines are left out, with these cells in the run's file."""
    sound = (run / "runs.csv").read_bytes()
    text = io.StringIO()
    csv.writer(text).writerows(cells)
    (run / "runs.csv").write_text(text.getvalue())
    try:
        frame = read_runs(run)
    finally:
        (run / "runs.csv").write_bytes(sound)
    return {line: why for why, lines in frame.attrs["left_out"].items() for line in lines}


def changed(cells: list[list[str]], line: int, **columns: Any) -> list[list[str]]:
    """The cells with other texts in a line, counted from 1 as in a message."""
    row = [
        str(columns.get(name, cell)) for name, cell in zip(cells[0], cells[line - 1], strict=True)
    ]
    return [*cells[: line - 1], row, *cells[line:]]


def test_no_sound_row_is_left_out(run: Path) -> None:
    """Neither of a simulated run, with uneven shards too, nor of an archived one."""
    for folder in (run, *ARCHIVE.glob("*/")):
        frame = read_runs(folder)
        assert frame.attrs["remarks"] == []
        assert len(frame) == len(cells_of(folder)) - 1


@pytest.mark.parametrize("form", [".15g", ".10g", ".6g", ".4g"])
def test_rounding_leaves_no_row_out(run: Path, form: str) -> None:
    """As a spreadsheet saves figures, with or without the places that it shows."""
    header, *rows = cells_of(run)
    shorter = [
        [
            f"{float(cell):{form}}" if cell and column_types()[name] is float else cell
            for name, cell in zip(header, row, strict=True)
        ]
        for row in rows
    ]
    assert left_out(run, [header, *shorter]) == {}


def test_any_digit_that_another_place_contradicts_is_noticed(run: Path) -> None:
    """500 seeded places: the row of each is left out, whichever column it is in."""
    chance = random.Random(19)
    cells = cells_of(run)
    half = (len(cells) - 1) // 2
    noticed = 0
    while noticed < 500:
        damaged, lines = cells, []
        for first in range(2, half + 2):  # the other launch of the case stays as it is
            line = first + chance.choice((0, half))
            damaged, is_known = with_other_digit(damaged, line, chance)
            lines += [line] if is_known else []
        found = left_out(run, damaged)
        for line in lines:
            assert line in found, (cells[line - 1], damaged[line - 1])
        noticed += len(lines)


def with_other_digit(
    cells: list[list[str]], line: int, chance: random.Random
) -> tuple[list[list[str]], bool]:
    """The cells with one digit changed, and whether another place contradicts it."""
    row = cells[line - 1]
    places = [(c, i) for c, cell in enumerate(row) for i, sign in enumerate(cell) if sign.isdigit()]
    column, place = chance.choice(places)
    name, old = cells[0][column], row[column]
    other = chance.choice([digit for digit in "0123456789" if digit != old[place]])
    new = old[:place] + other + old[place + 1 :]
    is_known = name not in FREE
    if name in SIX_DIGITS:
        is_known = abs(float(new) / float(old) - 1) > 2e-5
    elif is_known and column_types()[name] is float:
        is_known = not float(old) or abs(float(new) / float(old) - 1) > 1e-11
    return changed(cells, line, **{name: new}), is_known


@pytest.mark.parametrize(
    ("column", "text", "reason"),
    [
        ("checkpointing", "fulk", "checkpointing 'fulk' is not known to this version"),
        ("dtype", "float8", "dtype 'float8' is not known to this version"),
        ("device", "cqu", "device 'cqu' is not known to this version"),
        ("effort", "fall", "effort 'fall' is not known to this version"),
        ("checkpointing", "full", "checkpointing contradicts run.json"),
        ("strategy", "rsa", "strategy contradicts run.json"),
        ("workload", "axes-3d", "workload contradicts run.json"),
        ("case", "0123456789abcdef", "case contradicts run.json"),
        ("step_ms", "53.2", "step_ms, samples_per_s and batch contradict each other"),
        ("step_ms_p90", "199.5", "step_ms_p90 contradicts the samples of its launch"),
        ("iterations", "11", "iterations contradicts the samples of its launch"),
        (
            "sent_bytes_forward",
            "1",
            "sent_bytes_forward and predicted_bytes_forward contradict each",
        ),
        ("launch", "2", "launch and round contradict each other"),
    ],
)
def test_the_remark_names_the_row_and_what_contradicts_it(
    tmp_path: Path, column: str, text: str, reason: str
) -> None:
    """In a run of one launch a case, which no other launch can bear witness to."""
    run = simulated(tmp_path, launches=1, most=8)
    cells = changed(cells_of(run), 4, **{column: text})
    assert [(line, why[: len(reason)]) for line, why in left_out(run, cells).items()] == [
        (4, reason)
    ]


def test_rows_bear_witness_without_a_run_json(tmp_path: Path) -> None:
    """Most rows of a workload outvote another; where two contradict each other, neither counts."""
    run = simulated(tmp_path, launches=1, most=8)
    (run / "run.json").unlink()
    why = "checkpointing contradicts rows with the same workload_key"
    assert left_out(run, changed(cells_of(run), 4, checkpointing="full")) == {4: why}
    header, *rows = changed(cells_of(run), 4, checkpointing="full")
    assert left_out(run, [header, *rows[1:3]]) == {2: why, 3: why}


@pytest.mark.parametrize(
    ("changes", "is_sound"),
    [
        ({"steps_s": "3.0", "launch_s": "2.0"}, False),
        ({"steps_s": "2.0", "launch_s": "3.0"}, True),
        ({"repeat_error": "0.5"}, False),
        ({"repeat_error": "1e-7"}, True),
        ({"noisy": "others used 1.0 of 2 cores", "others_cores": "0.96"}, True),
        ({"noisy": "others used 1.0 of 2 cores", "others_cores": "0.05"}, False),
        ({"noisy": "others used 0.1 of 2 cores", "others_cores": "0.12"}, False),
        ({"gpu_neighbours": "1"}, False),
        ({"gpu_neighbours": "1", "noisy": "1 other process on gpu 0"}, True),
        ({"alloc_retries": "2"}, False),
    ],
)
def test_rows_that_should_have_been_marked(
    tmp_path: Path, changes: dict[str, str], is_sound: bool
) -> None:
    """By their own conditions, errors and seconds."""
    run = simulated(tmp_path, launches=1, most=4)
    found = left_out(run, changed(cells_of(run), 3, **changes))
    assert [*found] == ([] if is_sound else [3])


def test_a_damaged_run_json_leaves_no_row_out(tmp_path: Path) -> None:
    """An entry whose fields do not have its key bears no witness."""
    run = simulated(tmp_path, launches=1, most=8)
    text = (run / "run.json").read_text()
    (run / "run.json").write_text(
        text.replace('"checkpointing": "none"', '"checkpointing": "full"')
    )
    assert read_runs(run).attrs["remarks"] == []


def test_compare_says_it(tmp_path: Path) -> None:
    """On stderr, before the table, which does without the row."""
    run = simulated(tmp_path, launches=1, most=8)
    cells = changed(cells_of(run), 4, step_ms="53.2")
    (run / "runs.csv").write_text("\n".join(map(",".join, cells)))
    done = inside("compare", str(run))
    assert done.err.startswith(
        f"1 row of {run} is left out: step_ms, samples_per_s and batch contradict each other "
        "(line 4)"
    )


def test_a_launch_that_was_measured_again_has_the_samples_of_its_last_row(tmp_path: Path) -> None:
    """As a full launch behind a quick one: the quick row stays."""
    run = simulated(tmp_path, launches=1, most=8)
    (case, *_) = cases()
    last = len(cells_of(run)) + 1
    samples = samples_of(case, random.Random(2))
    columns = columns_of(case, LaunchResult(ok=True), samples, "ok", 1.0)
    again = Record.of_case(case, **columns | {"run_id": "a", "started_utc": "b", "status": "ok"})
    with Store(run) as store:
        store.append(again, samples)
    assert read_runs(run).attrs["left_out"] == {}
    damaged = changed(cells_of(run), last, step_ms_p10="90.99")
    assert [*left_out(run, damaged)] == [last]
