"""Odd terminals and none at all: no escape codes, nothing cut, no crash, the right exit code."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from helpers.command_line import ROOT, record, spbench
from helpers.examples import ALL
from helpers.golden import Golden
from helpers.in_process import Said, inside
from helpers.stored_rows import stored

from spbench.errors import DONE, READER_GONE, UNFIT
from spbench.report import tables
from spbench.results.hand_over import VerifyResult
from spbench.results.store import Store
from spbench.sweep.devices import Machines

pytestmark = pytest.mark.usefixtures("work_is_made_up")

COMMANDS = {
    "compare": "compare",
    "compare two": "compare older made-up",
    "list strategies": "list strategies",
    "list workloads": "list workloads",
    "list sweeps": "list sweeps",
    "list runs": "list runs",
    "baseline list": "baseline list",
    "baseline show": "baseline show good",
    "check": "check --baseline good made-up",
    "show": "show axial-weather",
    "dry run": "run -w axial-weather -s dsp,rsa,usp -g 2,8 --set heads=4 --set depth=1"
    " --skip-invalid --dry-run --device cpu",
    "dry sweep": "run --sweep dsp-strong-intra --dry-run --device cpu --skip-invalid",
    "help": "run --help",
}
"""Everything that prints and is quick; verify and run have their own tests, which start ranks."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs and a baseline, with names that are not ASCII."""
    folder = tmp_path_factory.mktemp("place")
    figures = {"step_ms": 1234.5, "compute_ms": 8.25, "output_error": 1e-7}
    figures |= {"tokens_per_s": 128e3 / 1234.5}
    sent = {f"sent_bytes_{phase}": 2**31 for phase in ("forward", "backward", "gradients")}
    for name in ("older", "made-up"):
        with Store(folder / "results" / name) as store:
            for launch in range(2):
                for strategy in ("dsp", "megatron-sp"):
                    more = {"run_id": name, "launch": launch, "workload": "süß-模型"}
                    store.append(record(strategy, **figures, **sent, **more))
            store.append(
                record("rsa", workload="süß-模型", status="oom", reason="rank 1: 3 GiB ≥ 2")
            )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        done = inside("baseline", "set", "good", "--force")
    assert done.code == DONE, done.err
    return folder


@pytest.fixture
def here(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The command runs there, with no settings of whoever runs the tests, always as fast."""
    monkeypatch.chdir(place)
    steady = Machines(cores=2, memory_bytes=2**33, core_flops_per_s=1e11)
    monkeypatch.setattr(Machines, "here", lambda nodes: steady)
    for name in ("FORCE_COLOR", "NO_COLOR", "COLUMNS", "LINES", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    return place


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


STYLE = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Seen:
    """A screen, with and without its styles."""

    code: int
    raw: str
    err: str

    @property
    def lines(self) -> list[str]:
        return STYLE.sub("", self.raw).splitlines()


def seen(name: str) -> Seen:
    stream = Terminal()
    done = inside(*COMMANDS[name].split(), out=stream)
    return Seen(done.code, stream.getvalue(), done.err)


def words_of(lines: list[str]) -> set[str]:
    return {word for line in lines for word in line.split()}


@pytest.mark.parametrize("name", COMMANDS)
def test_without_a_terminal_there_are_no_codes(here: Path, name: str) -> None:
    """Plain lines, of whatever length, whatever the terminal is called."""
    done = inside(*COMMANDS[name].split())
    assert done.code in (DONE, 4, 5), done.err
    assert done.out.strip()
    assert "\x1b" not in done.out + done.err


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "help"])
def test_nothing_is_cut_on_a_narrow_terminal(
    here: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """No line is wider than the terminal; each word and figure is one of the wide output."""
    monkeypatch.setenv("COLUMNS", "1000")
    wide = seen(name)
    for columns in (40, 80, 120) if ALL else (40, 100):
        monkeypatch.setenv("COLUMNS", str(columns))
        narrow = seen(name)
        assert (narrow.code, narrow.err) == (wide.code, wide.err)
        shown = narrow.lines
        assert max(len(line.rstrip()) for line in shown) <= columns
        if name != "show":  # a picture is another one
            said = next((i for i, line in enumerate(shown) if line.startswith("no room for")), None)
            other = {"sent", "6,144", "M", "params"}  # heads and sums of their own
            rules = {"─" * n for n in range(columns)}
            assert words_of(shown[:said]) <= words_of(wide.lines) | other | rules


@pytest.mark.parametrize("name", ["compare", "list workloads", "list sweeps", "dry run"])
def test_what_is_left_out_is_said(here: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Below the table, with how to see it; where all fits nothing is said."""
    monkeypatch.setenv("COLUMNS", "1000")
    assert "no room for" not in seen(name).raw
    monkeypatch.setenv("COLUMNS", "40")
    text = " ".join(" ".join(seen(name).lines).split())
    assert re.search(r"no room for \w[^:]*: --json has all, and so has a wider terminal", text)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_dumb_terminal_gets_no_codes(
    here: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """And lines of its width."""
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "60")
    screen = seen(name)
    assert screen.code in (DONE, 4, 5), screen.err
    assert "\x1b" not in screen.raw
    if name in ("compare", "list workloads"):
        assert max(map(len, screen.lines)) <= 60


@pytest.mark.parametrize("encoding", ["ascii", pytest.param("latin-1", marks=pytest.mark.long)])
@pytest.mark.parametrize("name", COMMANDS)
def test_what_an_encoding_lacks_is_escaped(here: Path, name: str, encoding: str) -> None:
    """As in a C locale: all of the rest is shown."""
    raw = io.BytesIO()
    done = inside(*COMMANDS[name].split(), out=io.TextIOWrapper(raw, encoding=encoding))
    assert done.code in (DONE, 4, 5), done.err
    text = raw.getvalue().decode(encoding)
    assert text.strip()
    if name == "compare":
        assert "rank 1: 3 GiB \\u2265 2" in text


def test_narrower_than_anything_that_can_be_drawn(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Words are cut at last, and still nothing breaks."""
    monkeypatch.setenv("COLUMNS", "12")
    for name in COMMANDS:
        assert seen(name).code in (DONE, 4, 5)


def test_verdicts_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """What verify shows: names, ranks and what passed stay longest."""
    verdict = VerifyResult(
        strategy="megatron-sp:keep-input",
        workload="axes-2d",
        ranks=2,
        dtype="float32",
        sharpness=1.0,
        outcome="passed",
        reason="",
        output_error=1e-7,
        gradient_error=2e-7,
        tolerance=1e-4,
    )
    stream = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.setattr(sys, "stdout", stream)
    tables.show_verdicts([verdict])
    lines = STYLE.sub("", stream.getvalue()).splitlines()
    assert max(map(len, lines)) <= 50
    (row,) = (line for line in lines if line.startswith(" megatron-sp:keep-input "))
    assert row.split()[1:] == ["2", "1", "0"]


def shell(folder: Path, command: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """A line of bash, in which ``spbench`` is the one under test; the status is of all of it."""
    defined = f'spbench() {{ "{sys.executable}" -m spbench "$@"; }}\n'
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail\n{defined}{command}"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    "words",
    ["list workloads", "run --help", pytest.param("compare --json", marks=pytest.mark.long)],
)
def test_a_reader_of_one_line(place: Path, words: str) -> None:
    """As '| head -1': quiet, and 0 or what SIGPIPE would give, by who was quicker."""
    done = shell(place, f"spbench {words} | head -1")
    assert (done.stderr, len(done.stdout.splitlines())) == ("", 1)
    assert done.returncode in (DONE, READER_GONE)


def test_a_closed_stream_is_dev_null(place: Path) -> None:
    """Stdout, stderr or all closed: nothing comes of it, the exit code is as ever."""
    assert shell(place, "spbench --help 2>&-").stdout == inside("--help").out
    for closed in (">&-", ">&- 2>&- <&-"):
        done = shell(place, f"spbench compare {closed}")
        assert (done.returncode, done.stdout, done.stderr) == (DONE, "", ""), closed
    wrong = shell(place, "spbench ryn 2>&-")
    assert (wrong.returncode, wrong.stdout) == (2, "")


@pytest.mark.parametrize(
    "words", ["compare --json", pytest.param("list strategies", marks=pytest.mark.long), "--help"]
)
def test_a_full_disk_behind_stdout(place: Path, words: str, golden: Golden) -> None:
    """It is said, with the exit code of an unfit environment and no traceback; to stderr, too, and
    unbuffered (in a short run by the quickest command)."""
    done = shell(place, f"spbench {words} >/dev/full")
    assert done.returncode == UNFIT
    golden(done.stderr)
    if not ALL and words != "--help":
        return
    both = shell(place, f"spbench {words} >/dev/full 2>&1")
    assert (both.returncode, both.stdout, both.stderr) == (UNFIT, "", "")
    unbuffered = shell(place, f"spbench {words} >/dev/full", PYTHONUNBUFFERED="1")
    assert unbuffered.returncode == UNFIT
    assert unbuffered.stderr == done.stderr


@pytest.mark.parametrize(
    ("words", "unbuffered"),
    [
        pytest.param("compare", "1", marks=pytest.mark.long),
        ("compare --json", ""),
        pytest.param("list workloads", "", marks=pytest.mark.long),
        ("list workloads", "1"),
        ("--help", ""),
        ("--help", "1"),
    ],
)
def test_a_pipe_without_a_reader(place: Path, words: str, unbuffered: str) -> None:
    """As by SIGPIPE: no message, and the exit code says that not all was read."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = spbench(place, *words.split(), stdout=writing, PYTHONUNBUFFERED=unbuffered)
    finally:
        os.close(writing)
    assert (done.code, done.err) == (READER_GONE, "")


@pytest.mark.long
def test_a_run_whose_reader_goes_away(tmp_path: Path) -> None:
    """It ends in order as by SIGPIPE, with what was finished; else it would go on unseen."""
    words = "run -w earthformer-small --set depth=1 --quick --device cpu -s dsp -g 2 --out here"
    done = shell(tmp_path, f"spbench {words} --launches 20 2>&1 | head -3")
    assert (done.returncode, done.stderr) == (READER_GONE, "")
    assert 1 <= len(stored(tmp_path / "here")) < 20
    with Store(tmp_path / "here") as store:
        store.check_room()


def many_rows(folder: Path) -> None:
    """A run whose table is larger than what a terminal or a pipe holds back."""
    with Store(folder / "results" / "many") as store:
        for i in range(400):
            store.append(record(f"s{i}", workload=f"model-{i}", step_ms=10.0 + i))


def in_terminal(
    folder: Path, *words: str, columns: int = 80, ignore: bool = False
) -> tuple[int, int]:
    """Starts a command with a terminal of its own; its process and the terminal's other end."""
    pid, master = pty.fork()
    if pid == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        os.chdir(folder)
        os.environ["PYTHONPATH"] = str(ROOT)
        for name in ("COLUMNS", "LINES"):  # as pytest's workers have them
            os.environ.pop(name, None)
        if ignore:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        os.execv(sys.executable, [sys.executable, "-m", "spbench", *words])
    return pid, master


def ended(pid: int, within_s: float = 30.0) -> int:
    """The exit code of a process; it is killed if it does not end."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise AssertionError("did not end")


@pytest.mark.parametrize("ignore", [False, True])
def test_a_terminal_that_is_closed(tmp_path: Path, ignore: bool) -> None:
    """While a table is printed: it ends as SIGHUP wants it; where that is ignored, with 6."""
    many_rows(tmp_path)
    pid, master = in_terminal(tmp_path, "compare", ignore=ignore)
    assert os.read(master, 100)  # it has begun to print, and soon waits for us to read on
    time.sleep(0.2)
    os.close(master)
    assert ended(pid) == (UNFIT if ignore else 128 + signal.SIGHUP)


def test_a_terminal_of_forty_columns(place: Path) -> None:
    """A real one: its width is asked for, and colours are used."""
    pid, master = in_terminal(place, "compare", columns=40)
    text = b""
    while True:
        try:
            more = os.read(master, 4096)
        except OSError:  # Linux says so when the other side has gone
            break
        if not more:
            break
        text += more
    os.close(master)
    assert ended(pid) == DONE
    shown = text.decode()
    assert "\x1b[" in shown
    lines = STYLE.sub("", shown).splitlines()
    assert max(len(line.rstrip()) for line in lines) <= 40
    assert any(line.startswith(" dsp ") for line in lines)


def test_json_is_the_same_everywhere(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal as in a pipe, however narrow."""
    piped = inside("compare", "--json").out
    monkeypatch.setenv("COLUMNS", "40")
    stream = Terminal()
    inside("compare", "--json", out=stream)
    assert stream.getvalue() == piped
    assert len(json.loads(piped)) == 3


def test_nohup_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal that is ignored when the command starts stays ignored."""
    kept = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        said: Said = inside("list", "strategies")
        assert said.code == DONE
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, kept)
