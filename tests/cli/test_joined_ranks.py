"""Variables of a launcher that started the ranks: understood, or refused by name."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest
from helpers.golden import Golden
from helpers.in_process import inside

from spbench.errors import UNFIT, USAGE, Failure
from spbench.launch.torchrun import JoinedLauncher, joined_ranks, meeting_place


@pytest.mark.parametrize(
    ("environ", "ranks"),
    [
        ({}, None),
        ({"RANK": "1"}, None),
        ({"WORLD_SIZE": "2"}, None),
        ({"RANK": "0", "WORLD_SIZE": "1"}, 1),
        ({"RANK": "15", "WORLD_SIZE": "16", "LOCAL_RANK": "7", "LOCAL_WORLD_SIZE": "8"}, 16),
        ({"RANK": "15", "WORLD_SIZE": "16", "LOCAL_RANK": "3"}, 16),
    ],
)
def test_how_many_ranks_were_started(environ: dict[str, str], ranks: int | None) -> None:
    """Both variables make this process a rank of that launch."""
    assert joined_ranks(environ) == ranks


GOOD = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
BAD = [
    *(("RANK", bad, "from 0 to 3") for bad in ("x", "", "-1", "4", "1.0", " 1", "٣", "9" * 99)),
    *(("WORLD_SIZE", bad, "from 1 on") for bad in ("x", "", "0", "-4", "1e3", "9" * 99)),
    ("LOCAL_RANK", "2", "from 0 to 1"),
    ("LOCAL_RANK", "a", "from 0 to 1"),
    ("LOCAL_WORLD_SIZE", "5", "from 1 to 4"),
]


@pytest.mark.parametrize(("name", "value", "works"), BAD)
def test_a_damaged_variable_is_refused_by_name(name: str, value: str, works: str) -> None:
    """The message has its value and what would work."""
    with pytest.raises(Failure) as caught:
        joined_ranks(GOOD | {name: value})
    assert str(caught.value).startswith(f"{name}={value!r}") and works in str(caught.value)


@pytest.mark.parametrize(
    "words",
    ["run --device cpu --dry-run", "run --sweep ci-smoke --device cpu", "verify --device cpu"],
)
def test_commands_refuse_it(monkeypatch: pytest.MonkeyPatch, words: str, golden: Golden) -> None:
    """Exit 2 before anything is started, whichever command joins."""
    monkeypatch.setenv("RANK", "x")
    monkeypatch.setenv("WORLD_SIZE", "2")
    done = inside(*words.split())
    assert (done.code, done.out) == (USAGE, "")
    golden(done.err)


def test_stdout_is_kept_for_results() -> None:
    """NCCL says its version on file descriptor 1, and what is read there is to be JSON."""
    program = """if True:
        import os
        from spbench.launch.torchrun import keep_stdout
        print("before")
        keep_stdout()
        os.write(1, b"NCCL version 2.28\\n")
        print("{}", flush=True)
    """
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("before\n{}\n", "NCCL version 2.28\n")


@pytest.mark.parametrize("name", ["MASTER_ADDR", "MASTER_PORT"])
def test_a_variable_that_is_missing_is_named(name: str, golden: Golden) -> None:
    """Exit 6 with the rank that lacks it, and what to do."""
    environ = GOOD | {"MASTER_ADDR": "node-a", "MASTER_PORT": "29500"}
    assert meeting_place(environ) == ("node-a", 29500)
    for unset in (environ | {name: ""}, {key: environ[key] for key in environ if key != name}):
        with pytest.raises(Failure) as caught:
            meeting_place(unset)
        assert caught.value.code == UNFIT
        golden(caught.value)


def test_a_port_that_is_none_is_refused(golden: Golden) -> None:
    """The message has its value and what would work."""
    with pytest.raises(Failure) as caught:
        meeting_place(GOOD | {"MASTER_ADDR": "node-a", "MASTER_PORT": "x"})
    golden(caught.value)


class Gone:
    """A group whose other rank has ended."""

    def gather_text(self, text: str) -> list[str]:
        raise RuntimeError("Connection closed by peer [127.0.0.1]:1\nstack")


def test_a_rank_that_ends_early_costs_no_results(
    capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    """All rows are written when the others are told that there is no more to do."""
    launcher = object.__new__(JoinedLauncher)
    vars(launcher).update(_lost=False, _group=Gone(), _fault=None)
    launcher.close()
    golden(capsys.readouterr().err)
    launcher.close()
    assert capsys.readouterr().err == ""


def test_a_rank_that_follows_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has temporary folders of its own on its machine, as its killed predecessors had."""
    swept: list[int] = []
    monkeypatch.setattr("spbench.launch.torchrun.sweep", lambda: swept.append(1))
    group = SimpleNamespace(rank=1, gather_text=lambda _: [""], close=lambda: None)
    launcher = object.__new__(JoinedLauncher)
    vars(launcher).update(_group=group, _fault=None, hosts=["a", "a"])
    launcher.follow()
    assert swept == [1]


def test_a_thread_that_is_left_does_not_meet_pythons_shutdown() -> None:
    """A store that is stuck in C++ would abort the process there; the exit code is the command's,
    and all that was printed is there."""
    program = """if True:
        import atexit, threading, time
        from spbench.cli import main as entry

        def ends_early(**_):
            threading.Thread(target=time.sleep, args=[60], daemon=True).start()
            print("printed")
            return 6

        entry.cli.main = ends_early
        atexit.register(print, "shutdown")
        entry.main()
    """
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (6, "printed\n", "")
