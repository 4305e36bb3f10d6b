"""How commands end: an exit code for every exception, and one message."""

from __future__ import annotations

import errno
import io
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

import click
import pytest
from helpers.golden import TRACEBACK, Golden
from helpers.in_process import inside

from spbench.cli.error_handling import (
    OF_THE_MACHINE,
    between_words,
    drop_unwritten,
    open_streams,
    reader_is_gone,
    report_error,
)
from spbench.errors import INTERNAL, INTERRUPTED, UNFIT, Failure


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (Failure("not so", 4), 4, "Error: not so\n"),
        (click.UsageError("no such flag"), 2, "Error: no such flag\n"),
        (KeyboardInterrupt(), INTERRUPTED, "Interrupted.\n"),
        (OSError(errno.ENOSPC, "full"), UNFIT, "Error: cannot write the output: full\n"),
        (OSError(errno.EROFS, "no", "a/b"), UNFIT, "Error: cannot use a/b: no\n"),
        (PermissionError(errno.EACCES, "no", "a/b"), UNFIT, "Error: cannot use a/b: no\n"),
    ],
)
def test_what_is_raised_has_a_code(
    capsys: pytest.CaptureFixture[str], error: BaseException, code: int, said: str
) -> None:
    """Each exception has one message on stderr, too."""
    assert report_error(error) == code
    assert capsys.readouterr() == ("", said)


def test_errors_of_the_machine_are_known() -> None:
    """A full or read-only disk is; a missing file may be a defect of spbench."""
    assert {errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EIO} <= OF_THE_MACHINE
    assert errno.ENOENT not in OF_THE_MACHINE


def test_a_deleted_current_folder_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """Exit 6 before torch is loaded, which would end the process; the doctor goes on."""
    monkeypatch.chdir(tmp_path)
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    said = inside("run", "-s", "dsp", "--device", "cpu", "--gpus", "2")
    assert (said.code, said.out) == (UNFIT, "")
    golden(said.err)
    monkeypatch.chdir(tmp_path)


def test_a_pipe_of_ours_that_breaks_is_a_defect(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    golden: Golden,
) -> None:
    """The readers of stdout and stderr are still there."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert not reader_is_gone()
    assert report_error(BrokenPipeError(errno.EPIPE, "Broken pipe")) == INTERNAL
    golden(capfd.readouterr().err, hide=TRACEBACK)


def test_a_traceback_that_cannot_be_kept_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where no file can be written, stderr has the only copy."""
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    assert report_error(ZeroDivisionError("a defect")) == INTERNAL
    err = capsys.readouterr().err
    said = "ZeroDivisionError: a defect\n"
    assert err == f"Internal error: {said}{said}\n"  # raised nowhere, so there are no lines of it


class Dead(io.StringIO):
    """A stream of a terminal that is gone."""

    def write(self, text: str) -> NoReturn:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def flush(self) -> NoReturn:
        raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("error", [Failure("not so"), KeyboardInterrupt(), OSError(errno.EIO, "x")])
def test_nobody_to_tell(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """With stderr closed, too, the code is the same, and nothing is raised."""
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, Dead())
    assert report_error(error) == {Failure: 2, KeyboardInterrupt: 130, OSError: UNFIT}[type(error)]
    drop_unwritten()


def test_streams_that_were_closed_swallow_what_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python has None in their place; others escape what they cannot encode."""
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(raw, encoding="ascii"))
    open_streams()
    print("nobody reads this")
    sys.stdout.close()
    print("süß \ud800", file=sys.stderr, flush=True)
    assert raw.getvalue() == b"s\\xfc\\xdf \\ud800\n"


def test_messages_are_broken_between_words(golden: Golden) -> None:
    """A path stays whole, though it is too long; a hint keeps its indentation."""
    text = "Error: it cannot be used\n  'spbench baseline set b80' makes /a/very/long-path/of-a/run"
    golden(between_words(text, 22))


DROPPED = """
import os, signal, time, weakref
from spbench.cli import main as entry

class Watched: pass

def run(_seen):
    watched = Watched()
    ref = weakref.ref(watched, lambda _: (os.kill(os.getpid(), signal.SIGINT), time.sleep(0.05)))
    del watched
    time.sleep(20)

entry._run = run
entry.main()
"""


def test_an_interrupt_that_python_dropped_comes_again() -> None:
    """Raised in a callback of a weak reference, as importlib has some, it ends the command too."""
    done = subprocess.run([sys.executable, "-c", DROPPED], timeout=10, check=False)
    assert done.returncode == 128 + signal.SIGINT


IMPORTING = """
import sys, time
from spbench.cli import main as entry

def run(**_):
    sys.path.insert(0, sys.argv[1])
    import torch
    time.sleep(20)

entry.cli.main = run
entry.main()
"""
TORCH = """
import os, signal, time
os.kill(os.getpid(), signal.SIGINT)
time.sleep(20)
"""


def test_an_interrupt_of_the_import_of_torch(tmp_path: Path) -> None:
    """It ends the command at once: an exception in it can make C++ abort the process."""
    (tmp_path / "torch.py").write_text(TORCH)
    words = [sys.executable, "-c", IMPORTING, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=15, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "Interrupted.\n")
