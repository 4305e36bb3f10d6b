"""Temporary folders: what a killed process left goes with the next start, and nothing else does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.spbench_process import ROOT

from spbench.results.heartbeat import heartbeat_folder
from spbench.results.temporary import OWNER, keep, mark, sweep, temporary_folder

OTHER = """
import sys
from pathlib import Path
from spbench.results.temporary import temporary_folder
with temporary_folder("spbench-base-", Path(sys.argv[1])) as folder:
    (folder / "tree").mkdir()
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def other(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Another process, and its temporary folder in ``tmp_path``."""
    process = subprocess.Popen(
        [sys.executable, "-c", OTHER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    yield process, Path(process.stdout.readline().strip())
    process.kill()
    process.communicate()


def test_what_a_killed_process_left_is_swept(
    tmp_path: Path, other: tuple[subprocess.Popen[str], Path]
) -> None:
    """It stays while its owner lives, stopped or not, and goes when that is dead, even if the
    parent of the dead has not yet asked about it."""
    process, folder = other
    process.send_signal(signal.SIGSTOP)
    sweep([tmp_path])
    assert (folder / "tree").is_dir()
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    sweep([tmp_path])
    assert [*tmp_path.iterdir()] == []


def test_an_id_that_is_used_again_does_not_protect(tmp_path: Path) -> None:
    """The owner is a process id and a start time: this process did not start at tick 1."""
    folder = tmp_path / "pymp-x"
    folder.mkdir()
    mark(folder)
    where, pid, start = (folder / OWNER).read_text().split()
    sweep([tmp_path])
    assert folder.exists()
    (folder / OWNER).write_text(f"{where} {pid} 1")
    sweep([tmp_path])
    assert not folder.exists()
    assert int(start) > 1


@pytest.mark.parametrize("owner", ["elsewhere 1 1", "unknown", "", "a b c d", None])
def test_folders_of_others_are_left_alone(tmp_path: Path, owner: str | None) -> None:
    """An owner on another machine or in another container, or one that cannot be read."""
    folder = tmp_path / "spbench-verify-x"
    folder.mkdir()
    if owner is not None:
        (folder / OWNER).write_text(owner)
    sweep([tmp_path, tmp_path / "missing"])
    assert folder.exists()


def test_links_and_folders_of_other_users_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can have another's folder removed by a link to it, or by a name of ours."""
    target = tmp_path / "precious"
    target.mkdir()
    mark(target)
    where, _, _ = (target / OWNER).read_text().split()
    (target / OWNER).write_text(f"{where} {os.getpid()} 1")
    (tmp_path / "spbench-link").symlink_to(target)
    target.replace(other := tmp_path / "spbench-precious")
    (tmp_path / "spbench-link2").symlink_to(other)
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    sweep([tmp_path])
    assert (other / OWNER).exists()
    monkeypatch.undo()
    sweep([tmp_path])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["spbench-link", "spbench-link2"]


def test_a_folder_that_is_kept_outlives_its_block(tmp_path: Path) -> None:
    """Logs that a message names stay for good; any other temporary folder ends with its block."""
    with temporary_folder("spbench-", tmp_path) as kept, temporary_folder("spbench-", tmp_path):
        keep(kept)
    sweep([tmp_path])
    assert [*tmp_path.iterdir()] == [kept]


def test_heartbeats_have_an_owner(tmp_path: Path) -> None:
    """A launch's heartbeats are removed with it, or by the next start."""
    with heartbeat_folder(tmp_path) as heartbeats:
        assert (heartbeats / OWNER).is_file()
    assert not heartbeats.exists()
