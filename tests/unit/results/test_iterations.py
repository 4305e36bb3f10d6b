"""Samples: every iteration comes back, also from the one file of older versions, torn or not."""

from __future__ import annotations

import csv
import gzip
import io
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas
import pytest
from helpers.examples import by_day, examples
from hypothesis import given
from hypothesis import strategies as st

from spbench.results.iterations import SAMPLE_COLUMNS, read_samples, steps_by_row, write_samples
from spbench.results.old_samples import COLUMNS as OLD_COLUMNS
from spbench.results.reading import frame_of
from spbench.results.record import Record
from spbench.results.sample import Sample
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


def written(folder: Path, launches: list[int], case: str = CASE.key) -> bytes:
    """samples.csv.gz as older versions wrote it: each launch a member, the first with a header."""
    for launch in launches:
        append_old(folder, case, launch, samples(launch))
    return (folder / "samples.csv.gz").read_bytes()


def append_old(folder: Path, case: str, launch: int, ranks: list[Sample]) -> None:
    rows = [
        (case, launch, name, sample.rank, i, f"{ms:.6g}")
        for sample in ranks
        for name, every in (("timed", sample.step_ms), ("silent", sample.compute_ms))
        for i, ms in enumerate(every or [])
    ]
    path = folder / "samples.csv.gz"
    is_new = not path.exists() or path.stat().st_size == 0
    text = io.StringIO()
    csv.writer(text).writerows([*([OLD_COLUMNS] if is_new else []), *rows])
    with path.open("ab") as file:
        file.write(gzip.compress(text.getvalue().encode(), mtime=0))


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


def read(folder: Path, data: bytes) -> pandas.DataFrame:
    (folder / "samples.csv.gz").write_bytes(data)
    return read_samples(folder)


@pytest.mark.parametrize("old", [False, True])
def test_every_iteration_comes_back(tmp_path: Path, old: bool) -> None:
    """By launch, pass and rank; an iteration is as long as its slowest rank."""
    if old:
        written(tmp_path, [0, 1, 2])
    for launch in [] if old else TIMES:
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


@pytest.mark.parametrize("old", [False, True])
def test_samples_are_one_frame(tmp_path: Path, old: bool) -> None:
    """A row is an iteration of a rank, whoever wrote it; the silent pass may be shorter."""
    if old:
        written(tmp_path, [0])
    else:
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


def test_a_run_of_an_older_version_is_resumed(tmp_path: Path) -> None:
    """What it wrote stays; a launch that is measured again is the new one."""
    written(tmp_path, [0, 1])
    write_samples(tmp_path, record(1), samples(2))
    write_samples(tmp_path, record(2), samples(2))
    found = read_samples(tmp_path)
    assert [steps(found, launch) for launch in range(3)] == [TIMES[0], TIMES[2], TIMES[2]]


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


@pytest.mark.parametrize("old", [False, True])
def test_only_the_cases_that_are_asked_for(tmp_path: Path, old: bool) -> None:
    """A large run is not all kept."""
    for case, launch in ((CASE.key, 0), ("other", 1)):
        if old:
            written(tmp_path, [launch], case)
        else:
            write_samples(tmp_path, record(launch, case=case), samples(launch))
    assert list(times(read_samples(tmp_path, {"other"}))) == [("other", 1)]
    assert list(times(read_samples(tmp_path, {CASE.key}))) == [(CASE.key, 0)]
    assert len(times(read_samples(tmp_path))) == 2


@pytest.mark.parametrize("make", [lambda path: None, Path.touch, Path.mkdir])
def test_without_samples_there_are_none(tmp_path: Path, make: Any) -> None:
    """Missing, empty, or no file at all."""
    make(tmp_path / "samples.csv.gz")
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


def test_a_file_torn_anywhere_is_written_on(tmp_path: Path) -> None:
    """Killed at any byte: whole launches before the tear, the torn one's beginning, what follows.

    Nothing of it is another figure than was measured.
    """
    first = written(tmp_path, [0])
    both = written(tmp_path, [1])
    seen = set()
    for length in by_day(range(len(both)), len(first), len(both) - 1):
        (tmp_path / "samples.csv.gz").write_bytes(both[:length])
        written(tmp_path, [2])
        found = read_samples(tmp_path)
        assert steps(found, 2) == TIMES[2]
        for launch in (0, 1):
            for had, now in zip(TIMES[launch], steps(found, launch), strict=False):
                assert had[: len(now)] == now
        if length >= len(first):
            assert steps(found, 0) == TIMES[0]
        assert counts(found) == (length not in (0, len(first)), 0)
        seen.add((len(steps(found, 0)), len(steps(found, 1))))
    assert {(0, 0), (2, 0), (2, 2)} <= seen


def test_a_launch_that_was_measured_again(tmp_path: Path) -> None:
    """Its last figures count, also where the first attempt was torn, and never a mixture."""
    whole = written(tmp_path, [0])
    append_old(tmp_path, CASE.key, 0, [samples(1)[0]])
    assert steps(read_samples(tmp_path), 0) == [TIMES[1][0]]
    (tmp_path / "samples.csv.gz").write_bytes(whole[:-12])
    append_old(tmp_path, CASE.key, 0, samples(1))
    assert steps(read_samples(tmp_path), 0) == TIMES[1]


def test_a_torn_second_attempt_leaves_the_first(tmp_path: Path) -> None:
    """Torn at any byte, nothing of the first is lost or mixed with the second."""
    first = written(tmp_path, [0])
    append_old(tmp_path, CASE.key, 0, samples(1))
    both = (tmp_path / "samples.csv.gz").read_bytes()
    for length in by_day(range(len(first), len(both)), len(both) - 1):
        assert steps(read(tmp_path, both[:length]), 0) == TIMES[0]
    assert steps(read(tmp_path, both), 0) == TIMES[1]
    assert steps(read(tmp_path, both + b"noise"), 0) == TIMES[1]


def test_ranks_with_different_numbers_of_iterations_have_no_slowest(tmp_path: Path) -> None:
    """As where a launch is torn: the iterations that are left would be compared with nothing."""
    text = "c,0,timed,0,0,1.5\nc,0,timed,0,1,2.5\nc,0,timed,1,0,1.5\n"
    found = read(tmp_path, gzip.compress(text.encode()))
    assert slowest(found, case="c") == []
    assert slowest(found[found["iteration"] == 0], case="c") == [1.5]


def test_a_member_with_a_wrong_checksum_is_left_out(tmp_path: Path) -> None:
    """Any of its figures may be wrong; the others stay."""
    first, data = len(written(tmp_path, [0])), bytearray(written(tmp_path, [1]))
    data[first + 30] ^= 4
    found = read(tmp_path, bytes(data))
    assert (steps(found, 0), steps(found, 1), counts(found)) == (TIMES[0], [], (1, 0))


def test_a_file_that_was_packed_again(tmp_path: Path) -> None:
    """One member in place of several, by another program; zeros at its end."""
    data = gzip.compress(gzip.decompress(written(tmp_path, [0, 1])), mtime=0)
    found = read(tmp_path, data + b"\0" * 100)
    assert (steps(found, 0), steps(found, 1), counts(found)) == (TIMES[0], TIMES[1], (0, 0))


@pytest.mark.parametrize("time_s", [0x69000000, 0x69020000, 0x69FF0400, 0x69212223])
def test_whatever_time_a_member_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, time_s: int
) -> None:
    """An older version wrote time and name: what is torn in them takes nothing of what follows."""
    monkeypatch.setattr("gzip.time.time", lambda: time_s)
    texts = [f"c,{i},timed,0,0,{i + 1}\n".encode() for i in range(2)]
    paths = [tmp_path / f"{i}.gz" for i in range(2)]
    for path, text in zip(paths, texts, strict=True):
        with gzip.open(path, "wb") as file:
            file.write(text)
    first, second = (path.read_bytes() for path in paths)
    for length in by_day(range(len(first)), len(first) - 1):
        assert steps(read(tmp_path, first[:length] + second), 1, "c") == [[2.0]]


def test_a_member_that_holds_what_looks_like_another(tmp_path: Path) -> None:
    """It is read to its own end, also before a torn one."""
    beginning = gzip.compress(b"", mtime=0)[:10]
    lines = [b"c,0,timed,0,0,1.5", beginning, b"c,0,timed,0,1,2.5", b""]
    data = gzip.compress(b"\n".join(lines), compresslevel=0)
    found = read(tmp_path, data + written(tmp_path, [0])[:-9])
    assert steps(found, 0, "c") == [[1.5, 2.5]]
    assert (steps(found, 0), counts(found)) == (TIMES[0], (1, 1))


def test_lines_that_are_no_sample_are_counted(tmp_path: Path) -> None:
    """Too short, not a number, not a time; the order of lines does not matter."""
    lines = ["c,0,timed,0,0,1.5", "c,0,timed", "c,0,timed,0,1,x", "c,0,timed,0,1,nan"]
    lines += ["c,0,timed,0,1,-1", "c,0,timed,0,2,1.5", "c,0,timed,0,1,2.5", ""]
    found = read(tmp_path, gzip.compress("\n".join(lines).encode()))
    assert times(found) == {("c", 0): [[1.5, 2.5, 1.5]]}
    assert counts(found) == (0, 4)


@examples(300)
@given(st.lists(st.tuples(st.floats(0, 1), st.binary(max_size=6), st.integers(0, 30)), max_size=5))
def test_any_bytes_are_read(
    tmp_path_factory: pytest.TempPathFactory, damage: list[tuple[float, bytes, int]]
) -> None:
    """Bytes put in and taken out anywhere: nothing raises, and what is read was measured."""
    folder = tmp_path_factory.mktemp("bytes")
    data = written(folder, [0, 1, 2])
    for where, put, gone in damage:
        at = round(where * len(data))
        data = data[:at] + put + data[at + gone :]
    found = read(folder, data)
    for ms in [*found["step_ms"].dropna(), *found["silent_ms"].dropna()]:
        assert math.isfinite(ms) and ms > 0
    for launch, known in TIMES.items():
        assert all(ms in known or found.attrs["torn"] for ms in steps(found, launch))


@examples(100)
@given(st.binary(max_size=300))
def test_noise_is_read(tmp_path_factory: pytest.TempPathFactory, noise: bytes) -> None:
    """Alone, and before a launch that is then found."""
    folder = tmp_path_factory.mktemp("noise")
    assert len(read(folder, noise)) == 0
    (folder / "samples.csv.gz").write_bytes(noise)
    written(folder, [2])
    assert steps(read_samples(folder), 2) == TIMES[2]


@pytest.mark.parametrize("ms", ["1e-200", "1e200", "1e-7", "inf", "0"])
def test_what_no_step_takes_is_damage(tmp_path: Path, ms: str) -> None:
    """Its ratio to another would be no number."""
    found = read(tmp_path, gzip.compress(f"c,0,timed,0,0,1.5\nc,0,timed,0,1,{ms}\n".encode()))
    assert (times(found), counts(found)) == ({("c", 0): [[1.5]]}, (0, 1))
