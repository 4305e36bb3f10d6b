"""spbench as a process, and whether anything of it is left."""

from __future__ import annotations

import contextlib
import csv
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import psutil

from spbench.results.heartbeat import find_heartbeats, read_heartbeat

ROOT = Path(__file__).parents[2]
PLUGINS = Path(__file__).parent / "plugins"
PATHS = os.pathsep.join([str(PLUGINS), str(ROOT)])
QUICK = ("-w", "earthformer-small", "--quick", "--device", "cpu", "--set", "depth=1")
SMALL = (*QUICK, "--set", "axes={time: 13, height: 4, width: 4}", "--set", "hidden=32")
LONG = (*QUICK, "--set", "axes={time: 16, height: 32, width: 32}", "-s", "rsa", "--gpus", "2")
"""Of many seconds."""


def start(
    folder: Path, *words: str, tree: Path | None = None, inside: Sequence[str] = (), **more: str
) -> subprocess.Popen[str]:
    """``spbench WORDS``; ``tree``: of another checkout; ``inside``: words of a command that becomes
    it. ``more``: variables."""
    paths = PATHS if tree is None else str(tree)
    return subprocess.Popen(
        [*inside, sys.executable, "-m", "spbench", *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": paths} | more,
    )


def finish(run: subprocess.Popen[str], within_s: float = 120) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    out, err = run.communicate(timeout=within_s)
    return run.returncode, out, err


def family(pid: int) -> list[psutil.Process]:
    """All that a process has started and that lives."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def alive(processes: list[psutil.Process], within_s: float = 8) -> list[psutil.Process]:
    """Those that are still there after a while."""
    _, left = psutil.wait_procs(processes, timeout=within_s)
    return [one for one in left if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


def listening(process: psutil.Process) -> list[tuple[str, int]]:
    """The addresses and ports at which a process accepts connections."""
    with contextlib.suppress(psutil.Error):
        sockets = process.net_connections("tcp")
        return [one.laddr for one in sockets if one.status == psutil.CONN_LISTEN]
    return []


def until_ranks_step(out: Path, run: subprocess.Popen[str], within_s: float = 60) -> None:
    """Waits until a rank has begun a step."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline and run.poll() is None:
        for place in out.glob("logs/*"):
            pulses = find_heartbeats(place)
            for rank in range(4):
                found = None if pulses is None else read_heartbeat(pulses, rank)
                if found is not None and found.steps:
                    return
        time.sleep(0.05)
    raise AssertionError("no rank began a step")


def rows_of(out: Path) -> list[dict[str, str]]:
    with (out / "runs.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def finished(out: Path) -> Counter[tuple[str, str]]:
    """How often each launch of each case stands there as measured."""
    if not (out / "runs.csv").exists():
        return Counter()
    return Counter((row["case"], row["launch"]) for row in rows_of(out) if row["status"] == "ok")
