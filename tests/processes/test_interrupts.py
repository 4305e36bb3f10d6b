"""Ctrl-C, signals, closed terminals, killed parents: rows are kept and no process is left."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import socket
import sys
import time
from pathlib import Path

import psutil
import pytest
from helpers.spbench_process import (
    LONG,
    PATHS,
    SMALL,
    alive,
    family,
    finish,
    finished,
    listening,
    rows_of,
    start,
    until_ranks_step,
)

from spbench.launch.process import GRACE_S
from spbench.results.store import Store


def launcher_and_server(ours: list[psutil.Process]) -> tuple[psutil.Process, psutil.Process]:
    """The launcher and its fork, of which ranks are forked in turn."""
    launcher = next(one for one in ours if "spbench.launch.agent" in " ".join(one.cmdline()))
    (server,) = (one for one in launcher.children() if one.cmdline() == launcher.cmdline())
    return launcher, server


@pytest.mark.serial
@pytest.mark.parametrize(
    ("signals", "code"),
    [
        ([signal.SIGINT], 130),
        pytest.param([signal.SIGINT] * 3, 130, marks=pytest.mark.long),
        pytest.param([signal.SIGTERM], 143, marks=pytest.mark.long),
        pytest.param([signal.SIGHUP], 129, marks=pytest.mark.long),
    ],
)
def test_an_ending_by_signal(tmp_path: Path, signals: list[signal.Signals], code: int) -> None:
    """The case under way has a row 'interrupted'; the exit code tells the signal; ports on which
    the run listened are free again."""
    out = tmp_path / "here"
    run = start(tmp_path, "run", *LONG, "--out", "here")
    until_ranks_step(out, run)
    ours = family(run.pid)
    _, server = launcher_and_server(ours)
    assert [one.ppid() for one in server.children()] == [server.pid] * 2
    ports = {port for one in [psutil.Process(run.pid), *ours] for _, port in listening(one)}
    assert ports
    for one in signals:
        with contextlib.suppress(ProcessLookupError):
            run.send_signal(one)
        time.sleep(0.3)
    began = time.monotonic()
    done, _, err = finish(run, 30)
    assert time.monotonic() - began < GRACE_S, "ranks that end at once were waited for"
    assert done == code, err
    assert "Traceback" not in err
    assert alive(ours) == []
    assert [row["status"] for row in rows_of(out)] == ["interrupted"]
    for port in ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("", port))
            probe.listen()


def test_an_interrupt_while_the_command_is_loaded(tmp_path: Path) -> None:
    """It ends at once, by the signal itself and without a word."""
    (tmp_path / "click.py").write_text("import os\nos.kill(os.getpid(), 2)\n")
    run = start(tmp_path, "list", "runs", PYTHONPATH=f"{tmp_path}{os.pathsep}{PATHS}")
    assert finish(run, 20) == (-signal.SIGINT, "", "")


@pytest.mark.long
def test_a_terminal_that_is_closed(tmp_path: Path) -> None:
    """No process is left, and the row of the case under way says that it was interrupted."""
    out = tmp_path / "here"
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.environ["PYTHONPATH"] = PATHS
        os.execv(sys.executable, [sys.executable, "-m", "spbench", "run", *LONG, "--out", "here"])
    shell = psutil.Process(pid)
    deadline = time.monotonic() + 60
    while not list(out.glob("logs/*/job.json")) and time.monotonic() < deadline:
        time.sleep(0.05)
    while len(ours := family(pid)) < 5 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(ours) >= 5
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 129
    assert not shell.is_running()
    assert alive(ours) == []
    assert [row["status"] for row in rows_of(out)] == ["interrupted"]


@pytest.mark.long
@pytest.mark.parametrize("who", ["launcher", "fork server"])
def test_a_launcher_that_is_stopped(tmp_path: Path, who: str) -> None:
    """What its ranks had finished counts; after --hang-after the next case has a launcher of its
    own, and nothing of the first is left."""
    words = ("run", *SMALL, "-s", "rsa,dsp", "--gpus", "2", "--out", "here", "--hang-after", "4")
    run = start(tmp_path, *words)
    until_ranks_step(tmp_path / "here", run)
    ours = family(run.pid)
    launcher, server = launcher_and_server(ours)
    stopped = launcher if who == "launcher" else server
    stopped.suspend()
    code, _, err = finish(run, 120)
    assert code == 0, err
    assert [row["status"] for row in rows_of(tmp_path / "here")] == ["ok", "ok"]
    assert alive(ours) == []


@pytest.mark.long
def test_a_fork_server_that_is_killed(tmp_path: Path) -> None:
    """The row blames it and no rank; the same launcher starts another for the next case."""
    out = tmp_path / "here"
    run = start(tmp_path, "run", *LONG[:-4], "-s", "rsa,dsp", "--gpus", "2", "--out", "here")
    until_ranks_step(out, run)
    ours = family(run.pid)
    launcher_and_server(ours)[1].kill()
    code, _, err = finish(run, 120)
    assert code == 3, err
    first, second = rows_of(out)
    assert (first["status"], first["reason"]) == ("crash", "the fork server was ended by SIGKILL")
    assert (second["strategy"], second["status"]) == ("dsp", "ok")
    assert alive(ours) == []


@pytest.mark.long
@pytest.mark.parametrize("who", ["spbench", "launcher"])
def test_a_sudden_death(tmp_path: Path, who: str) -> None:
    """After SIGKILL to spbench no process is left, and the lock does not hold. After SIGKILL to the
    launcher its ranks end, a row says so, and the next case has a launcher of its own."""
    out = tmp_path / "here"
    words = (*LONG[:-4], "-s", "rsa,dsp", "--gpus", "2", "--out", "here")
    run = start(tmp_path, "run", *words)
    until_ranks_step(out, run)
    ours = family(run.pid)
    launcher = next(one for one in ours if "spbench.launch.agent" in " ".join(one.cmdline()))
    if who == "spbench":
        run.kill()
        finish(run, 10)
        assert alive(ours) == []
        assert not finished(out)
        with Store(out):
            pass
        return
    ranks = [one for one in ours if one != launcher]
    launcher.kill()
    assert alive(ranks) == []
    code, _, err = finish(run, 120)
    assert code == 3, err
    first, second = rows_of(out)
    assert (first["status"], first["reason"]) == ("crash", "the launcher was ended by SIGKILL")
    assert (second["strategy"], second["status"]) == ("dsp", "ok")


@pytest.mark.long
def test_two_runs_on_one_output(tmp_path: Path) -> None:
    """The second refuses with 6 and names --out; the first goes on. With different outputs two runs
    go on beside each other: no port is shared."""
    first = start(tmp_path, "run", *LONG, "--launches", "60", "--out", "here")
    until_ranks_step(tmp_path / "here", first)
    second = start(tmp_path, "run", *SMALL, "-s", "dsp", "--gpus", "2", "--out", "here")
    code, _, err = finish(second, 60)
    assert code == 6, err
    assert "being written by another run" in err and "--out" in err
    beside = start(tmp_path, "run", *SMALL, "-s", "dsp", "--gpus", "2", "--out", "there")
    code, _, err = finish(beside, 120)
    assert code == 0, err
    assert first.poll() is None
    first.send_signal(signal.SIGINT)
    finish(first, 30)


@pytest.mark.long
def test_the_time_for_all_launches(tmp_path: Path) -> None:
    """--max-time: the launch under way is interrupted, no other begins, and a resume does it."""
    words = ("run", *LONG, "--launches", "2", "--out", "here", "--max-time", "6s")
    code, _, err = finish(start(tmp_path, *words))
    assert code == 3, err
    assert "--max-time reached; " in err
    assert "resume with: spbench resume here\n" in err
    rows = rows_of(tmp_path / "here")
    assert rows[-1]["status"] == "interrupted" or len(rows) == 1
    assert len(rows) <= 2
