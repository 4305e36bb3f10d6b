"""Which process of ours, and not a rank, is to blame for the end of a launch."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing import forkserver
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from helpers.golden import Golden
from helpers.network_namespace import needs_namespace
from helpers.spbench_process import ROOT

from spbench.launch import ranks
from spbench.launch.launcher import LauncherError, status_and_cause
from spbench.launch.local import LocalLauncher
from spbench.launch.process import FORK_SERVER, LAUNCHER, AgentProcess
from spbench.workload.case import Job

PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
print(child.pid, flush=True)
child.wait()
"""


@pytest.fixture
def pair() -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that stands for the launcher, and the id of a child of it."""
    words = [sys.executable, "-c", PARENT]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        yield process, child
        psutil.Process(child).kill()
        process.kill()


def test_who_is_stopped_is_found(
    tmp_path: Path, pair: tuple[subprocess.Popen[str], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launcher or the fork server that it started; none before it runs, or once both go on."""
    launcher, fork_server = pair
    agent = AgentProcess(tmp_path / "log", {})
    assert agent.stopped() == ""
    monkeypatch.setattr(agent, "_process", launcher)
    assert agent.stopped() == ""
    for pid, name in ((launcher.pid, LAUNCHER), (fork_server, FORK_SERVER)):
        psutil.Process(pid).send_signal(signal.SIGSTOP)
        deadline = time.monotonic() + 2
        while agent.stopped() != name and time.monotonic() < deadline:
            time.sleep(0.01)
        assert agent.stopped() == name
        psutil.Process(pid).send_signal(signal.SIGCONT)


def test_how_the_fork_server_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at all, or by a signal, which is negative; Python can still ask for its end itself."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        server = SimpleNamespace(_forkserver_pid=process.pid)
        monkeypatch.setattr(forkserver, "_forkserver", server)
        assert ranks._end_of_fork_server() is None
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert ranks._end_of_fork_server() == -signal.SIGKILL
        assert process.wait() == -signal.SIGKILL


def test_shared_memory_that_is_full_is_said_before_a_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """Semaphores and heartbeats could not be made; no process is started, no row is lost."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=5 * 2**10))
    job = Job(ranks=2, device="cpu", collectives=True)
    with pytest.raises(LauncherError) as refused:
        LocalLauncher(tmp_path / "logs" / "launcher.log").run(job, tmp_path / "launch")
    golden(refused.value)
    assert [*tmp_path.iterdir()] == []


@needs_namespace
def test_a_heartbeat_without_memory_is_an_error(tmp_path: Path) -> None:
    """It is not a rank's death by SIGBUS in the midst of a step."""
    full = f"mount -t tmpfs -o size=4k none {tmp_path} && head -c 4096 /dev/zero >{tmp_path}/all"
    code = f"from spbench.results.heartbeat import *; Heartbeat(Path('{tmp_path}/rank0.pulse'))"
    words = ["unshare", "--mount", "--map-root-user", "sh", "-c", f'{full}; exec "$0" -c "{code}"']
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*words, sys.executable], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    assert os.strerror(errno.ENOSPC) in done.stderr


def test_each_start_sweeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What killed processes left goes when a launcher starts, not with each launch."""
    swept: list[int] = []
    monkeypatch.setattr("spbench.launch.process.sweep", lambda: swept.append(1))
    agent = AgentProcess(tmp_path / "log", {})
    monkeypatch.setattr(agent, "_words", ["-c", "input()"])
    for _ in range(2):
        agent.start()
        assert swept == [1]
    agent.end(now=True)


@pytest.mark.parametrize(("still_s", "hung"), [(9.0, True), (1.0, False)])
def test_who_was_stopped_is_blamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, still_s: float, hung: bool
) -> None:
    """Without a wait for stacks, which it would not have written."""
    ended: list[bool] = []
    launcher = LocalLauncher(tmp_path / "launcher.log")
    agent = SimpleNamespace(stopped=lambda: FORK_SERVER, end=lambda *, now: ended.append(now))
    monkeypatch.setattr(launcher, "_agent", agent)
    job = Job(ranks=2, device="cpu", hang_s=8.0)
    result = launcher._end_launch(tmp_path, tmp_path, job, still_s)
    assert (result.culprit, result.timed_out, ended) == (FORK_SERVER, not hung, [True])
    why = "the fork server was stopped by a signal (SIGSTOP)"
    status, cause = status_and_cause(result, [], job)
    assert (status, cause.startswith(f"{why}; ")) == ("hang" if hung else "timeout", True)
    assert "stacks" not in cause
