"""The last line of a run on a terminal: its phase, what is left, and torch being loaded."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from helpers.golden import NOW, Golden
from helpers.terminal import STYLED, Terminal

from spbench.report import units
from spbench.report.progress import LiveLine, Screen, loading_torch, watched
from spbench.report.tables import console
from spbench.results.heartbeat import Heartbeat, heartbeat_folder, heartbeat_path
from spbench.workload.case import Case
from spbench.workload.catalogue import find

CASE = Case(workload=find("axes-2d", "verify"), strategy="dsp", ranks=2, device="cpu")
OTHER = CASE.model_copy(update={"strategy": "rsa"})


def test_what_takes_a_while_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    """One line in a log; a bar with the name of what is under way on a terminal."""
    assert list(watched(iter([1, 2]), ["dsp", "rsa"], "dry runs")) == [1, 2]
    golden(capsys.readouterr().err, hide=NOW)
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    assert list(watched(iter([1, 2]), ["dsp", "rsa"], "dry runs")) == [1, 2]
    assert "dry runs: " in screen.getvalue() and "0/2" in screen.getvalue()


def test_what_is_left_follows_the_pace(golden: Golden) -> None:
    """Estimates say how launches compare, finished launches how long they take."""
    now_s = 100.0
    known = {CASE.key: 10.0, OTHER.key: 30.0}
    line = LiveLine(console(Terminal()), [CASE, OTHER, OTHER], known, lambda: now_s)
    assert line.time_left() == "about 70 s left"
    now_s = 104.0
    assert line.time_left() == "about 66 s left"
    now_s = 120.0  # twice what was expected
    assert line.time_left() == "about 60 s left"
    line.finished()
    golden(line.time_left())
    now_s = 130.0
    line.finished()
    line.finished()
    assert line.time_left() == ""


def test_without_estimates_launches_count_alike() -> None:
    """Nothing is said before the first has shown how long a launch takes."""
    now_s = 0.0
    line = LiveLine(console(Terminal()), [CASE] * 3, now_s=lambda: now_s)
    assert line.time_left() == ""
    now_s = 8.0
    line.finished()
    assert line.time_left() == "about 16 s left"


def test_further_launches_are_expected_to_take_as_long() -> None:
    """A further round follows where too few launches were quiet."""
    now_s = 0.0
    line = LiveLine(console(Terminal()), [CASE], {CASE.key: 10.0}, lambda: now_s)
    now_s = 20.0
    line.finished()
    line.more(2)
    assert line.time_left() == "about 40 s left"


def test_the_phase_is_that_of_the_first_rank(tmp_path: Path) -> None:
    """Until there is a heartbeat torch is being loaded; later launches start with torch loaded."""
    line = LiveLine(console(Terminal()), [CASE, CASE])
    assert line.phase() == ""
    line.started(CASE, tmp_path)
    assert line.phase() == "loading torch"
    with heartbeat_folder(tmp_path) as heartbeats:
        Heartbeat(heartbeat_path(heartbeats, 0)).phase("warm-up")
        assert line.phase() == "warm-up"
    line.finished()
    assert line.phase() == "starting"


def test_a_terminal_shows_the_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """Strategy, phase, count and time in one line."""
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    for name, value in {"TERM": "xterm", "COLUMNS": "100"}.items():
        monkeypatch.setenv(name, value)
    with Screen(tmp_path, [CASE, CASE], launch_s={CASE.key: 40.0}) as screen:
        screen.started(CASE, tmp_path)
        screen.line.progress.refresh()
    shown = STYLED.sub("", terminal.getvalue())
    line = next(line for line in shown.splitlines() if "loading" in line)
    golden(line, hide={r"\x1b\[2K": "", r"0:00:\d\d": "0:00:00"})


def test_loading_torch_is_said_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere with --verbose alone; where torch is loaded already there is nothing to say."""
    monkeypatch.setenv("TERM", "xterm")
    plain, terminal = io.StringIO, Terminal
    for stream, verbose, said in (
        (terminal, False, True),
        (plain, True, True),
        (plain, False, False),
    ):
        monkeypatch.setattr(sys, "stderr", seen := stream())
        with monkeypatch.context() as without:
            without.delitem(sys.modules, "torch")
            with loading_torch(verbose=verbose):
                pass
        assert ("loading torch" in seen.getvalue()) == bool(seen.getvalue()) == said
        with loading_torch(verbose=True):
            assert seen.getvalue().count("loading torch") <= 1


def test_rough_times() -> None:
    """No more digits than an estimate has."""
    shown = {0.2: "1 s", 59.6: "60 s", 89: "89 s", 130: "2.2 min", 1234: "21 min"}
    shown |= {5000: "83 min", 9000: "2.5 h", 1e5: "28 h", 1e6: "12 d"}
    assert {seconds: units.roughly(seconds) for seconds in shown} == shown
