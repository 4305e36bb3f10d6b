"""Samples: every iteration comes back; what is torn or damaged takes nothing else with it."""

from __future__ import annotations

import gzip
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas
import pytest
from helpers.examples import by_day, examples
from hypothesis import given
from hypothesis import strategies as st

from spbench.results.hand_over import Sample
from spbench.results.record import Record
from spbench.results.runs_csv import frame_of
from spbench.results.samples import SAMPLE_COLUMNS, read_samples, steps_by_row, write_samples
from spbench.results.store import Store
from spbench.workload.case import Case
from spbench.workload.catalogue import find

CASE = Case(workload=find("axes-2d", "verify"), strategy="dsp", ranks=2, device="cpu")
TIMES = {0: [[1.25, 2.5, 3.0], [1.5, 2.25, 4.0]], 1: [[5.0, 6.0], [7.0, 5.5]], 2: [[8.0], [9.0]]}
"""By launch and rank."""


def record(launch: int = 0, **more: Any) -> Record:
    known = {"run_id": "a run", "started_utc": "2030-01-01T00:00:00Z", "status": "ok"}
    return replace(Record.of_case(CASE, **known), launch=launch, **more)


def samples(launch: int) -> list[Sample]:
    return [
        Sample(rank=rank, status="ok", step_ms=ms, compute_ms=[0.5])
        for rank, ms in enumerate(TIMES[launch])
    ]


def times(frame: pandas.DataFrame) -> dict[tuple[str, int], list[list[float]]]:
    """Milliseconds of the timed pass of each rank, by case and launch."""
    found: dict[tuple[str, int], list[list[float]]] = {}
    timed = frame[frame["step_ms"].notna()]
    for (case, launch, _), of_rank in timed.groupby(["case", "launch", "rank"])["step_ms"]:
        found.setdefault((case, launch), []).append(of_rank.tolist())
    return found


def steps(frame: pandas.DataFrame, launch: int, case: str = CASE.key) -> list[list[float]]:
    return times(frame).get((case, launch), [])


def counts(frame: pandas.DataFrame) -> tuple[int, int]:
    """The numbers of torn launches and damaged lines."""
    return frame.attrs["torn"], frame.attrs["damaged"]


def slowest(frame: pandas.DataFrame, launch: int = 0, **more: Any) -> list[float]:
    """Each iteration of a launch on its slowest rank."""
    row = record(launch, **{"step_ms": 1.0, "compute_ms": 1.0} | more)
    return steps_by_row(frame_of([row]), frame).get(0, [])


def read(folder: Path, *lines: str) -> pandas.DataFrame:
    """The samples of a file with these lines below its header."""
    text = "\n".join([",".join(SAMPLE_COLUMNS), *lines, ""])
    (folder / "samples").mkdir(exist_ok=True)
    (folder / "samples" / "c-launch0.csv.gz").write_bytes(gzip.compress(text.encode()))
    return read_samples(folder)


def test_every_iteration_comes_back(tmp_path: Path) -> None:
    """All launches of a run, and each step on its slowest rank, where all ranks have it."""
    for launch in TIMES:
        write_samples(tmp_path, record(launch), samples(launch))
    found = read_samples(tmp_path)
    assert {launch: steps(found, launch) for launch in TIMES} == TIMES
    assert counts(found) == (0, 0)
    assert slowest(found) == [1.5, 2.5, 4.0]
    assert slowest(found[found["rank"] == 0], kind="one_gpu_share", world_size=8) == [0.5]
    assert slowest(found, kind="one_gpu_share", world_size=8) == []
    assert slowest(found, step_ms=None) == []
    assert slowest(found, world_size=3) == []
    assert slowest(found, 9) == []


def test_samples_are_one_frame(tmp_path: Path) -> None:
    """A row is an iteration of a rank; the silent pass may be shorter."""
    write_samples(tmp_path, record(0), samples(0))
    frame = read_samples(tmp_path)
    assert list(frame.columns) == list(SAMPLE_COLUMNS)
    assert list(map(str, frame.dtypes))[1:] == [*3 * ["int64"], *2 * ["float64"]]
    blank = frame.silent_ms.isna()
    assert frame[~blank].values.tolist() == [
        [CASE.key, 0, 0, 0, 1.25, 0.5],
        [CASE.key, 0, 1, 0, 1.5, 0.5],
    ]
    assert frame.step_ms.tolist() == [1.25, 2.5, 3.0, 1.5, 2.25, 4.0]
    assert counts(frame) == (0, 0)


def test_a_launch_is_replaced_by_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed at any moment, the earlier attempt or the new one is there as a whole."""
    write_samples(tmp_path, record(0), samples(0))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            write_samples(tmp_path, record(0), samples(1))
    assert steps(read_samples(tmp_path), 0) == TIMES[0]
    write_samples(tmp_path, record(0), samples(1))
    assert steps(read_samples(tmp_path), 0) == TIMES[1]
    assert counts(read_samples(tmp_path)) == (0, 0)


@pytest.mark.parametrize("damage", [b"", b"noise", None])
def test_a_damaged_file_takes_no_other_launch_with_it(tmp_path: Path, damage: bytes | None) -> None:
    """Empty, of noise or cut anywhere: it is counted, and the others are read."""
    for launch in (0, 1):
        write_samples(tmp_path, record(launch), samples(launch))
    path = tmp_path / "samples" / f"{CASE.key}-launch0.csv.gz"
    data = path.read_bytes()
    cuts = by_day(range(len(data)), 1, len(data) - 1)
    for cut in [damage] if damage is not None else [data[:n] for n in cuts]:
        path.write_bytes(cut)
        found = read_samples(tmp_path)
        assert (steps(found, 0), steps(found, 1), counts(found)) == ([], TIMES[1], (1, 0))


def test_only_the_cases_that_are_asked_for(tmp_path: Path) -> None:
    """A large run is not all kept."""
    for case, launch in ((CASE.key, 0), ("other", 1)):
        write_samples(tmp_path, record(launch, case=case), samples(launch))
    assert list(times(read_samples(tmp_path, {"other"}))) == [("other", 1)]
    assert list(times(read_samples(tmp_path, {CASE.key}))) == [(CASE.key, 0)]
    assert len(times(read_samples(tmp_path))) == 2


@pytest.mark.parametrize("make", [lambda path: None, Path.touch, Path.mkdir])
def test_without_samples_there_are_none(tmp_path: Path, make: Any) -> None:
    """Missing, empty, or no file at all."""
    make(tmp_path / "samples")
    found = read_samples(tmp_path)
    assert (len(found), counts(found), slowest(found)) == (0, (0, 0), [])


def test_a_launch_without_samples_adds_nothing(tmp_path: Path) -> None:
    """Skipped or failed, or of ranks that timed nothing: no file is written."""
    with Store(tmp_path) as store:
        store.append(record(status="skipped"))
        store.append(record(1, status="oom"), [Sample(rank=0, status="oom")])
        assert not (tmp_path / "samples").exists()
        store.append(record(2), samples(2))
        store.append(record(3, status="skipped"))
    assert [one.name for one in (tmp_path / "samples").iterdir()] == [f"{CASE.key}-launch2.csv.gz"]


def test_ranks_with_different_numbers_of_iterations_have_no_slowest(tmp_path: Path) -> None:
    """As where lines are lost: the iterations that are left would be compared with nothing."""
    found = read(tmp_path, "c,0,0,0,1.5,", "c,0,0,1,2.5,", "c,0,1,0,1.5,")
    assert slowest(found, case="c") == []
    assert slowest(found[found["iteration"] == 0], case="c") == [1.5]


def test_lines_that_are_no_sample_are_counted(tmp_path: Path) -> None:
    """Too short, not a number, not a time; the order of lines does not matter."""
    lines = ["c,0,0,0,1.5,", "c,0", "c,0,0,1,x,", "c,0,x,1,1.5,", "c,0,0,1.5,1.5,", "c,0,0,1,-1,"]
    found = read(tmp_path, *lines, "c,0,0,2,1.5,", "c,0,0,1,2.5,")
    assert sorted(times(found)["c", 0][0]) == [1.5, 1.5, 2.5]
    assert counts(found) == (0, 4)


@examples(300)
@given(st.lists(st.tuples(st.floats(0, 1), st.binary(max_size=6), st.integers(0, 30)), max_size=5))
def test_any_bytes_are_read(
    tmp_path_factory: pytest.TempPathFactory, damage: list[tuple[float, bytes, int]]
) -> None:
    """Bytes put in and taken out anywhere: nothing raises, and what is read was measured."""
    folder = tmp_path_factory.mktemp("bytes")
    write_samples(folder, record(0), samples(0))
    (file,) = (folder / "samples").iterdir()
    data = file.read_bytes()
    for where, put, gone in damage:
        at = round(where * len(data))
        data = data[:at] + put + data[at + gone :]
    file.write_bytes(data)
    write_samples(folder, record(2), samples(2))
    found = read_samples(folder)
    for ms in [*found["step_ms"].dropna(), *found["silent_ms"].dropna()]:
        assert math.isfinite(ms) and ms > 0
    assert steps(found, 2) == TIMES[2]
    assert steps(found, 0) == TIMES[0] or found.attrs["torn"]


@pytest.mark.parametrize("ms", ["1e-200", "1e200", "1e-7", "inf", "0"])
def test_what_no_step_takes_is_damage(tmp_path: Path, ms: str) -> None:
    """Its ratio to another would be no number."""
    found = read(tmp_path, "c,0,0,0,1.5,", f"c,0,0,1,{ms},")
    assert (times(found), counts(found)) == ({("c", 0): [[1.5]]}, (0, 1))
