"""Places that runs write to: odd names, full, read-only, vanished, without locks, taken."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from helpers.command_line import record
from helpers.golden import Golden
from helpers.in_process import Said, inside
from helpers.spbench_process import start
from helpers.stored_rows import rows_left_out, stored

from spbench.errors import DONE, UNFIT, USAGE
from spbench.results.runs_csv import read_runs, records_of
from spbench.results.store import LEAST_FREE_BYTES, Store

WORDS = ["run", "-w", "earthformer-small", "--set", "depth=1", "--quick", "--device", "cpu"]
CELLS = [*WORDS, "-s", "dsp", "-g", "2", "--out"]


def has_rows(out: Path) -> bool:
    """Whether a launch has been written."""
    with contextlib.suppress(OSError):
        return (out / "runs.csv").read_bytes().count(b"\n") > 1
    return False


def in_mid_run(out: Path, act: Callable[[], object], *words: str) -> Said:
    """A run of many launches, in which something happens once it has rows."""

    def meanwhile() -> None:
        while not has_rows(out) and not ended.is_set():
            time.sleep(0.02)
        time.sleep(0.2)  # a launch is under way
        act()

    ended = threading.Event()
    thread = threading.Thread(target=meanwhile)
    thread.start()
    try:
        return inside(*CELLS, str(out), "--launches", "40", *words)
    finally:
        ended.set()
        thread.join()


def complaint(done: Said) -> str:
    """The last line, in which a run says why it ended."""
    return done.err.splitlines()[-1]


def mounted(place: Path, *options: str) -> bool:
    """A small file system of its own in ``place``, where one may mount."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        return False
    words = ["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", str(place)]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk that has room for the beginning of a run."""
    place = tmp_path / "disk"
    place.mkdir()
    if not mounted(place, "size=24m"):
        pytest.skip("needs to mount a file system")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(disk: Path) -> None:
    """Writes until nothing more goes."""
    with (disk / "filler").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 2**16)
        except OSError:
            return


@pytest.mark.long
def test_a_full_disk_ends_a_run(small_disk: Path) -> None:
    """With 6, the folder's name and the rows so far, which are read again; with room it goes on."""
    out = small_disk / "run"
    done = in_mid_run(out, lambda: fill(small_disk))
    assert (done.code, done.out) == (UNFIT, ""), done.err
    last = done.err.splitlines()[-1]
    assert str(out) in last
    assert "No space left on device" in last or "MiB free, and a launch needs 16" in last
    rows = read_runs(out)
    assert 1 <= len(records_of(rows)) < 40
    assert {row.status for row in records_of(rows)} <= {"ok", "crash"}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(small_disk)
        assert inside("compare", "run").code == DONE
    (small_disk / "filler").unlink()
    with Store(out) as store:
        store.check_room()
        store.append(record("dsp"))
    assert len(stored(out)) == len(records_of(rows)) + 1


def test_a_disk_that_is_nearly_full_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """Exit 6 with how much is free, before a rank is started."""
    usage = shutil._ntuple_diskusage(2**40, 2**40, LEAST_FREE_BYTES - 1)  # type: ignore[attr-defined]
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    done = inside(*CELLS, str(tmp_path / "here"))
    assert (done.code, done.out) == (UNFIT, "")
    golden(complaint(done))
    assert not (tmp_path / "here" / "runs.csv").exists()
    assert not (tmp_path / "here" / "logs").exists()


def test_a_read_only_disk(small_disk: Path, golden: Golden) -> None:
    """A run of which no row could be written ends with 6; what lies there is read as ever."""
    out = small_disk / "run"
    with Store(out) as store:
        store.append(record("dsp", step_ms=1.0))
        store.write_run({"argv": ["spbench"]})
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for place in (out, small_disk / "new"):
        done = inside(*CELLS, str(place))
        assert (done.code, done.out) == (UNFIT, "")
        golden(complaint(done), f"a run in {place.name}")
    assert inside("compare", str(out)).code == DONE
    plotted = inside("plot", str(out))
    assert plotted.code == UNFIT
    golden(complaint(plotted), "plots")
    kept = inside("baseline", "set", "good", str(out), "--force", "--baselines", str(small_disk))
    assert (kept.code, kept.out) == (UNFIT, "")


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_folder_that_may_not_be_written(tmp_path: Path) -> None:
    """Exit 6, and nothing is started."""
    tmp_path.chmod(0o555)
    done = inside(*CELLS, str(tmp_path / "here"))
    assert (done.code, done.out) == (UNFIT, "")
    assert "Permission denied" in done.err


@pytest.mark.long
def test_a_folder_that_vanishes_ends_a_run(tmp_path: Path, golden: Golden) -> None:
    """In the middle of a launch: 6, and no rows are written to one that is made anew."""
    out = tmp_path / "here"
    done = in_mid_run(out, lambda: out.rename(tmp_path / "away"))
    assert (done.code, done.out) == (UNFIT, ""), done.err
    golden(complaint(done))
    assert len(stored(tmp_path / "away")) >= 1
    assert not (out / "runs.csv").exists()


@pytest.mark.long
def test_a_run_that_ended_before_it_wrote_anything(tmp_path: Path) -> None:
    """It leaves a lock and logs: no other things than a run's, so that it may go on."""
    out = tmp_path / "here"
    (out / "logs").mkdir(parents=True)
    (out / ".lock").touch()
    done = inside(*CELLS, str(out))
    assert done.code == DONE, done.err
    assert len(stored(out)) == 1


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("line\nbreak", UNFIT, "not a name that prints"),
        ("tab\t", UNFIT, "not a name that prints"),
        ("\udcff", UNFIT, "not a name that prints"),
        ("x" * 300, UNFIT, "File name too long"),
        ("file", USAGE, "is a file"),
        ("file/inside", UNFIT, "Not a directory"),
        ("dangling", UNFIT, "a link that leads nowhere"),
        ("dangling/inside", UNFIT, "cannot write to"),
        ("loop/inside", UNFIT, "a link that leads nowhere"),
        ("other", USAGE, "holds other things than a run"),
    ],
)
def test_a_place_that_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: int, said: str
) -> None:
    """It is said before anything starts, in one message."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").touch()
    (tmp_path / "other" / "logs").mkdir()
    before = sorted(tmp_path.rglob("*"))
    done = inside(*CELLS, name)
    assert (done.code, done.out) == (code, ""), done.err
    assert said in done.err
    assert done.err.startswith("Error: ")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("words", ["compare {}", "plot {}", "check --baseline {} {}", "show {}"])
def test_a_name_that_is_too_long_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    """Of any command: an error, no defect."""
    monkeypatch.chdir(tmp_path)
    done = inside(*words.format("x" * 300, "x" * 300).split())
    assert done.code in (USAGE, UNFIT)
    assert done.err.startswith("Error: ")


def test_a_folder_under_ones_feet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """The current folder is gone: 6 with what to do, and no defect."""
    place = tmp_path / "gone"
    place.mkdir()
    monkeypatch.chdir(place)
    place.rmdir()
    done = inside(*CELLS, "here")
    assert (done.code, done.out) == (UNFIT, "")
    golden(done.err)
    assert inside("list", "strategies").code == inside("compare").code == UNFIT


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """As NFS may be: exit 6 with what to do, before any rank is started."""
    with Store(tmp_path / "run") as store:
        store.append(record("dsp"))

    def none(*_: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fcntl, "flock", none)
    done = inside("baseline", "set", "a", "run")
    assert (done.code, done.out) == (UNFIT, "")
    said = "has no locks, so two runs could write there at once; use another --out, on a local disk"
    assert done.err.rstrip().endswith(said)
    assert len(done.err.splitlines()) == 1


ODD = "spa ce, quo'te\" ü 模 $(x) ;&|%s"
"""Spaces, quotes, other scripts, and what a shell would take for a command."""


@pytest.mark.long
def test_two_runs_at_once_on_one_output(tmp_path: Path) -> None:
    """The second is refused with 6 while the first goes on, and ends as if it had been alone;
    an odd name is no trouble to either."""
    out = tmp_path / ODD / ("x" * 200)
    first = start(tmp_path, *CELLS, str(out), "--launches", "12")
    while first.poll() is None and not (out / "run.json").exists():
        time.sleep(0.02)
    second = start(tmp_path, *CELLS, str(out), "--launches", "3")
    said, err = second.communicate(timeout=60)
    assert (second.returncode, said) == (UNFIT, ""), err
    refused = "is being written by another run; wait for it, or use another --out"
    assert err == f"Error: {out} {refused}\n"
    _, err = first.communicate(timeout=180)
    assert first.returncode == DONE, err
    rows = read_runs(out)
    assert [(row.status, row.run_id) for row in records_of(rows)] == [("ok", out.name)] * 12
    assert len({row.round.partition(".")[0] for row in records_of(rows)}) == 1
    assert (rows_left_out(rows), rows.attrs["remarks"]) == (0, [])
    argv = json.loads((out / "run.json").read_text())["argv"]
    assert argv[-3:] == [str(out), "--launches", "12"]
    for command in ("compare", "plot"):
        assert inside(command, str(out)).code == DONE
