"""Real ranks through torch elastic: right statuses, nothing lost, no process left."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from spbench.launch.local import LocalLauncher
from spbench.launch.plan import Request, every, plan
from spbench.launch.sweep import Sweep
from spbench.results.record import Record
from spbench.results.store import Store, read_rows
from spbench.workload.case import QUICK
from spbench.workload.catalogue import find

PLUGINS = Path(__file__).parent / "plugins"
SMALL = ["-w", "earthformer-small", "--quick", "--device", "cpu", "--set", "depth=1"]


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    _, left = psutil.wait_procs(processes, timeout=5)
    return [p for p in left if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "spbench", "run", *SMALL, *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(PLUGINS)},
    )


def start_long(folder: Path, out: Path) -> subprocess.Popen[str]:
    """A run of many seconds, once its ranks have been started."""
    words = ("--set", "axes={time: 16, height: 64, width: 64}", "-s", "rsa", "--gpus", "2")
    run = start(folder, *words, "--out", str(out))
    deadline = time.monotonic() + 60
    while not list(out.glob("logs/*/logs/*/*/0/stderr.log")) and time.monotonic() < deadline:
        time.sleep(0.1)
    return run


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Record]:
    """One sweep over every faulty strategy, and a good one after them; records by name."""
    folder = tmp_path_factory.mktemp("faults")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(PLUGINS))
        patch.setenv("PYTHONPATH", str(PLUGINS))
        names = ["raises", "exits", "killed", "hangs", "lies", "dsp"]
        request = Request(
            combinations=every(find("axes-2d", "verify"), names, [2]),
            device="cpu",
            effort=QUICK,
        )
        launcher = LocalLauncher(folder / "logs" / "launcher.log")
        with Store(folder) as store:
            sweep = Sweep(store=store, launcher=launcher, run_id="faults", timeout_s=20.0)
            before = psutil.Process().children(recursive=True)
            records = list(sweep.run(plan(request), lambda _: None))
            launcher.close()
        assert (
            alive([p for p in psutil.Process().children(recursive=True) if p not in before]) == []
        )
    assert read_rows(folder).records == records
    return {record.strategy: record for record in records}


@pytest.mark.parametrize(
    ("strategy", "status", "reason"),
    [
        ("raises", "crash", "rank 1: ZeroDivisionError: a fault of rank 1"),
        ("exits", "crash", "rank 1 ended with exit code 7"),
        ("killed", "crash", "rank 1 was ended by SIGKILL"),
        ("hangs", "timeout", "not done after 20 s"),
        ("lies", "wrong_result", "differs from one device"),
        ("dsp", "ok", ""),
    ],
)
def test_faults_become_rows(
    faults: dict[str, Record], strategy: str, status: str, reason: str
) -> None:
    """Each fault has its status and names the rank; the sweep goes on to the good case."""
    record = faults[strategy]
    assert (record.status, reason in record.reason) == (status, True), record.reason
    assert (record.step_ms is not None) == (status == "ok")


def test_a_run_from_the_command_line(tmp_path: Path) -> None:
    """Rows, samples, run.json, the table on stdout, progress on stderr; nothing runs on."""
    run = start(tmp_path, "-s", "dsp,megatron-sp", "--gpus", "2", "--out", "here", "--json")
    out, err = run.communicate(timeout=120)
    assert run.returncode == 0, err
    rows = json.loads(out)
    assert [row["status"] for row in rows] == ["ok", "ok"]
    for row in rows:
        for phase in ("forward", "backward", "gradients"):
            assert row[f"sent_bytes_{phase}"] == row[f"predicted_bytes_{phase}"]
        assert row["step_ms"] > 0
        assert row["gradient_error"] < row["tolerance"]
    facts = json.loads((tmp_path / "here" / "run.json").read_text())
    assert facts["versions"]["torch"]
    assert facts["cases"][0]["strategy"] == "dsp"
    assert (tmp_path / "here" / "samples.csv.gz").stat().st_size > 100
    assert "\x1b" not in err

    again = start(tmp_path, "-s", "dsp,megatron-sp", "--gpus", "2", "--out", "here")
    out, err = again.communicate(timeout=60)
    assert again.returncode == 0, err
    assert "2 cases are in here already; 0 left to do" in err
    assert len((tmp_path / "here" / "runs.csv").read_text().splitlines()) == 3


@pytest.mark.parametrize(("ending", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_keeps_its_rows(tmp_path: Path, ending: int, code: int) -> None:
    """Finished cases stay, the one under way is 'interrupted', no process is left."""
    out = tmp_path / "here"
    run = start_long(tmp_path, out)
    time.sleep(1.0)
    family = psutil.Process(run.pid).children(recursive=True)
    assert len(family) >= 3
    run.send_signal(ending)
    _, err = run.communicate(timeout=30)
    assert run.returncode == code, err
    assert alive(family) == []
    with (out / "runs.csv").open() as file:
        assert [row["status"] for row in csv.DictReader(file)] == ["interrupted"]


def test_a_killed_parent_takes_its_ranks_along(tmp_path: Path) -> None:
    """SIGKILL to spbench itself: launcher and ranks die by themselves, the next start resumes."""
    out = tmp_path / "here"
    run = start_long(tmp_path, out)
    family = psutil.Process(run.pid).children(recursive=True)
    run.kill()
    run.communicate(timeout=10)
    assert alive(family) == []
    with Store(out):
        pass  # the lock of a dead writer does not hold


def test_joining_ranks_that_torchrun_started(tmp_path: Path) -> None:
    """Under torchrun every process is one rank; rank 0 alone writes and speaks."""
    words = ["-m", "spbench", "run", *SMALL, "-s", "dsp,rsa", "--out", "here", "--json"]
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node=2",
            *words,
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    rows = json.loads(run.stdout)
    assert [(row["strategy"], row["status"], row["world_size"]) for row in rows] == [
        ("dsp", "ok", 2),
        ("rsa", "ok", 2),
    ]


def test_a_share_of_a_group(tmp_path: Path) -> None:
    """--share: one process, gated as threads, compute and memory but no step and no sent bytes."""
    run = start(tmp_path, "--share", "-s", "dsp,rsa", "--gpus", "1,8", "--out", "here", "--json")
    out, err = run.communicate(timeout=120)
    assert run.returncode == 0, err
    rows = json.loads(out)
    assert [row["status"] for row in rows] == ["ok"] * 4
    for row in rows:
        assert (row["kind"], row["backend"]) == ("one_gpu_share", "fake")
        assert row["step_ms"] is None
        assert row["sent_bytes_forward"] is None
        assert row["compute_ms"] > 0
        assert "(reduced)" in row["gated_on"]
    memory = {
        row["world_size"]: row["peak_allocated_bytes"] for row in rows if row["strategy"] == "dsp"
    }
    assert memory[8] < memory[1] / 2
