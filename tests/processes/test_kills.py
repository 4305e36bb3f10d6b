"""Kills at random moments: after the resume every measured case is there exactly once, and one more
start leaves nothing in the temporary folder and in shared memory.

200 of them with ``make test-all``, or as many as the variable TEST_KILLS says.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest
from helpers.spbench_process import SMALL, alive, family, finish, finished, start

WORDS = (
    *("run", *SMALL, "-s", "dsp,ulysses,rsa", "--gpus", "2", "--launches", "2"),
    *("--out", "here", "--timeout", "60", "--hang-after", "10"),
)
CASES = 6
CODES = (0, 3, 130, 143, -signal.SIGKILL, -signal.SIGINT, -signal.SIGTERM)
"""Negative: ended by the signal itself, before spbench could handle it or when all was done."""
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
KILLS = int(os.environ.get("TEST_KILLS", "200"))
TORCH_CACHE = "torchinductor_"
"""A folder that torch makes when it is loaded, and uses again."""
TARGETS = ("spbench", "launcher", "rank")


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_random_kills(tmp_path: Path, private_memory: tuple[list[str], Path | None]) -> None:
    """SIGKILL, SIGTERM or SIGINT to spbench, its launcher or a rank, again and again, with a resume
    after each end: no measured case is lost or doubled, no process is left, and no file after one
    more start."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    inside, shared = private_memory
    dice = random.Random(20)
    done = sweeps = 0
    sent: Counter[str] = Counter()
    while done < KILLS:
        folder = tmp_path / f"{sweeps}"
        folder.mkdir()
        seen: Counter[tuple[str, str]] = Counter()
        code = None
        while code != 0:
            run = start(folder, *WORDS, inside=inside, TMPDIR=str(temporary))
            known: set[psutil.Process] = set()
            while done < KILLS and _lives(run, dice.uniform(0.1, 3.0), known):
                target, what = dice.choice(TARGETS), dice.choice(SIGNALS)
                done += _send(run, target, what)
                sent[f"{what.name} to {target}"] += 1
                if target == "spbench":
                    break
            _lives(run, 100, known)
            code, _, err = finish(run, 100)
            assert code in CODES, err
            assert "Traceback" not in err, err
            assert alive(list(known)) == []
            now = finished(folder / "here")
            assert set(now.values()) <= {1}, "a case that was measured twice"
            assert not seen - now, "a case that was measured is lost"
            seen = now
        assert len(seen) == CASES
        sweeps += 1
    assert KILLS < 60 or len(sent) == len(TARGETS) * len(SIGNALS)
    last = start(tmp_path, *WORDS, inside=inside, TMPDIR=str(temporary))
    code, _, err = finish(last, 100)
    assert code == 0, err
    places = [place for place in (temporary, shared) if place is not None]
    assert _left_in(places) == []


@pytest.fixture
def private_memory() -> Iterator[tuple[list[str], Path | None]]:
    """The words that give a command a shared memory of its own, and the folder that is it; without
    either where namespaces are not permitted."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="test-") as folder:
        bind = 'mount --bind "$0" /dev/shm && exec "$@"'
        for enter in (["unshare", "--mount"], ["unshare", "--mount", "--map-root-user"]):
            words = [*enter, "sh", "-c", bind, folder]
            if subprocess.run([*words, "true"], capture_output=True, check=False).returncode == 0:
                yield words, Path(folder)
                return
        yield [], None


def _left_in(places: Sequence[Path], within_s: float = 8) -> list[Path]:
    """What lies there after a while: Python's resource tracker removes semaphores when all that had
    them have ended."""
    deadline = time.monotonic() + within_s
    while True:
        left = [path for place in places for path in place.iterdir()]
        left = [path for path in left if not path.name.startswith(TORCH_CACHE)]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.1)


def _lives(run: subprocess.Popen[str], for_s: float, known: set[psutil.Process]) -> bool:
    """Whether it still runs after so many seconds; adds its processes to ``known`` meanwhile."""
    deadline = time.monotonic() + for_s
    while time.monotonic() < deadline:
        known.update(family(run.pid))
        if run.poll() is not None:
            return False
        time.sleep(0.02)
    return True


def _send(run: subprocess.Popen[str], target: str, what: signal.Signals) -> int:
    """1 if there was a process to send it to, else 0."""
    ours = family(run.pid)
    launchers = [one for one in ours if _parent(one) == run.pid]
    servers = [one for one in ours if _parent(one) in {launcher.pid for launcher in launchers}]
    ranks = [one for one in ours if _parent(one) in {server.pid for server in servers}]
    pids = {"spbench": [run.pid], "launcher": [one.pid for one in launchers]}
    pids["rank"] = [one.pid for one in ranks]
    for pid in pids[target][:1]:
        try:
            os.kill(pid, what)
        except ProcessLookupError:
            return 0
        return 1
    return 0


def _parent(process: psutil.Process) -> int | None:
    try:
        return process.ppid()
    except psutil.NoSuchProcess:
        return None
