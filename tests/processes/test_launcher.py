"""Real ranks through torch elastic: right statuses, no row lost, no process left."""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers import spbench_process
from helpers.command_line import spbench
from helpers.examples import ALL
from helpers.run_on_threads import BRIEF
from helpers.shared_launcher import SharedAgent
from helpers.spbench_process import PATHS, PLUGINS, SMALL
from helpers.stored_rows import stored
from helpers.sweeps import run_all, sweep_into

from spbench.launch import local
from spbench.launch.local import LocalLauncher
from spbench.launch.process import AgentProcess
from spbench.results.record import Record
from spbench.results.variables import read_column
from spbench.sweep.plan import cells
from spbench.sweep.request import Request, every
from spbench.workload.case import QUICK
from spbench.workload.catalogue import find
from spbench.workload.traffic import OPS

WORK = find("axes-2d", "verify")
GATHERED = WORK.depth * 2 * WORK.key_bytes // 2
"""Bytes that each of 2 ranks sends forward, or backward: its half of K and of V in the attention
along the sharded axis, of which each block has one."""
OWN_OPERATOR = (
    "a collective that comm/ does not count: c10d::allgather_ inside plug_in::whole (4 calls), "
    f"c10d::allreduce_ (4 calls), which sent {GATHERED + 2 * GATHERED:,} bytes"
)
TORCHS_OPERATOR = (
    "_c10d_functional::all_gather_into_tensor inside cplib::flex_cp_allgather (4 calls), "
    "_c10d_functional::reduce_scatter_tensor inside cplib::flex_cp_allgather_backward (4 calls), "
    f"which sent {2 * GATHERED:,} bytes"
)
NO_SILENT = QUICK.model_copy(update={"silent": False})


def start(folder: Path, *words: str, fault: str = "") -> subprocess.Popen[str]:
    return spbench_process.start(folder, "run", *SMALL, *words, SPBENCH_FAULT=fault)


@pytest.fixture(scope="module")
def faults(
    shared_agent: SharedAgent, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Record]:
    """The records, by strategy, of a sweep over each faulty strategy and then a good one."""
    folder = tmp_path_factory.mktemp("faults")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(PLUGINS))
        patch.setattr(local, "AgentProcess", shared_agent)
        own = ["by-own-operator", "by-torchs-operator", "outside-torch"]
        names = ["raises", "lies", *own, "dsp"]
        request = Request(
            combinations=every(find("axes-2d", "verify"), names, [2]), device="cpu", budget=BRIEF
        )
        launcher = LocalLauncher(folder / "logs" / "launcher.log")
        with sweep_into(folder, launcher) as sweep:
            records = list(run_all(sweep, cells(request)))
    assert stored(folder) == records
    return {record.strategy: record for record in records}


@pytest.mark.parametrize(
    ("strategy", "status", "reason"),
    [
        ("raises", "crash", "rank 1: ZeroDivisionError: a fault of rank 1"),
        ("lies", "wrong_result", "differs from one device"),
        ("by-own-operator", "wrong_result", OWN_OPERATOR),
        ("by-torchs-operator", "wrong_result", TORCHS_OPERATOR),
        ("outside-torch", "ok", ""),
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


def test_what_is_not_seen_stands_in_the_row(faults: dict[str, Record]) -> None:
    """Operators of compiled or of other code than torch's; and how many graphs ran: none."""
    unseen = {strategy: record.unseen_operators for strategy, record in faults.items()}
    assert unseen["outside-torch"] == "plug_in::outside_torch (4 calls)"
    assert unseen["dsp"] == ""
    assert (faults["dsp"].compiled, faults["lies"].compiled) == (0, None)


BY_DAY = ("dsp", pytest.param("dsp,megatron-sp", marks=pytest.mark.long))


@pytest.mark.parametrize("names", BY_DAY)
def test_a_run_from_the_command_line(tmp_path: Path, names: str) -> None:
    """Rows, samples, run.json, the table on stdout, progress on stderr; nothing runs on."""
    words = ("-s", names, "--gpus", "2", "--out", "here")
    run = start(tmp_path, *words, "--json")
    out, err = run.communicate(timeout=120)
    assert run.returncode == 0, err
    rows = json.loads(out)
    assert [row["status"] for row in rows] == ["ok"] * len(names.split(","))
    for row in rows:
        for phase in ("forward", "backward", "gradients"):
            assert row[f"sent_bytes_{phase}"] == row[f"predicted_bytes_{phase}"]
        assert row["step_ms"] > 0
        assert row["gradient_error"] < row["tolerance"]
        assert row["stopped_by"] in ("precision", "seconds", "iterations")
        assert 0 < row["steps_s"] < row["launch_s"]
        # Twenty quick steps may be over before the kernel's ticks tell anything.
        assert row["others_cores"] is None or row["others_cores"] >= 0
        assert row["hardware"].endswith(f" x{len(os.sched_getaffinity(0))}")
        called = {word.partition("=")[0].partition(".")[2] for word in row["collectives"].split()}
        assert called == {op for op in OPS if row[f"{op}_bytes"]}
    assert len({row["round"] for row in rows}) == 1
    facts = json.loads((tmp_path / "here" / "run.json").read_text())
    assert facts["versions"]["torch"]
    assert facts["cases"][0]["strategy"] == "dsp"
    assert len(list((tmp_path / "here" / "samples").iterdir())) == len(rows)
    assert "\x1b" not in err

    again = spbench(tmp_path, "run", *SMALL, *words, torch=True)
    assert again.code == 0, again.err
    are = "launch is" if len(rows) == 1 else "launches are"
    assert f"{len(rows)} {are} in here already; 0 left to do" in again.err
    assert len((tmp_path / "here" / "runs.csv").read_text().splitlines()) == 1 + len(rows)


def torchrun(folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """``spbench run WORDS --out here --json`` as each of two ranks; ``more``: variables."""
    elastic = ["torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "spbench"]
    return subprocess.run(
        [sys.executable, "-m", *elastic, "run", *words, "--out", "here", "--json"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | {"PYTHONPATH": PATHS} | more,
    )


def test_joining_ranks_that_torchrun_started(tmp_path: Path) -> None:
    """Under torchrun every process is one rank and rank 0 alone writes; a fault can be planted.

    On a CPU no strategy asks for a variable of CUDA, and none has it; what the user has set is in
    every row, as the ranks had it.
    """
    more = {"SPBENCH_FAULT": "slow@rank1:1%", "NCCL_ALGO": "Ring", "CUDA_CACHE_PATH": "a b"}
    names = ["dsp", "megatron-sp"] if ALL else ["dsp"]
    run = torchrun(tmp_path, *SMALL, "-s", ",".join(names), **more)
    assert run.returncode == 0, run.stderr[-2000:]
    rows = json.loads(run.stdout)
    cases = [(row["strategy"], row["status"], row["world_size"]) for row in rows]
    assert cases == [(name, "ok", 2) for name in names]
    assert all(0 < row["steps_s"] < row["launch_s"] for row in rows)
    assert {row["environment"] for row in rows} == {"SPBENCH_FAULT=slow@rank1:1%"}
    (said,) = {row["variables"] for row in rows}
    variables = read_column(said)
    assert (variables["NCCL_ALGO"], variables["CUDA_CACHE_PATH"]) == ("Ring", "a b")
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in variables
    assert {row["numa"] for row in rows} == {""}


HOPPERS = """\
def nvmlInit(): pass
def nvmlShutdown(): pass
def nvmlSystemGetDriverVersion(): return "570.1"
def nvmlDeviceGetCount(): return 2
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetName(index): return "NVIDIA H200"
def nvmlDeviceGetCudaComputeCapability(index): return 9, 0
"""
"""A pynvml.py of a machine that has two of them."""


@pytest.mark.long
def test_joined_ranks_on_gpus_refuse_what_needs_two_environments(tmp_path: Path) -> None:
    """Each rank ends with 2 before it touches a GPU or writes, and says what to do."""
    (tmp_path / "fake").mkdir()
    (tmp_path / "fake" / "pynvml.py").write_text(HOPPERS)
    paths = os.pathsep.join([str(tmp_path / "fake"), PATHS])
    small = ["cuda" if word == "cpu" else word for word in SMALL]
    words = [*small, "-s", "dsp,megatron-sp,rsa"]
    run = torchrun(tmp_path, *words, PYTHONPATH=paths, CUDA_VISIBLE_DEVICES="0,1")
    assert "Error: megatron-sp asked for CUDA_DEVICE_MAX_CONNECTIONS=1, dsp and rsa" in run.stderr
    assert "into the same --out, -s dsp,rsa and then -s megatron-sp" in run.stderr
    assert re.search(r"exitcode\s*: 2 ", run.stderr)
    assert (run.stdout, (tmp_path / "here").exists()) == ("", False)


@pytest.mark.serial
def test_a_planted_slow_rank_shows(tmp_path: Path) -> None:
    """The steps of that rank, silent ones too, are longer than another's; -v shows where the time
    of the launch went, and that little of it is overhead."""
    words = ("-s", "dsp", "--gpus", "2", "--out", "here", "--json", "-v", "--launches", "2")
    run = start(tmp_path, *words, fault="slow@rank1:300%")
    out, err = run.communicate(timeout=120)
    assert run.returncode == 0, err
    assert {row["environment"] for row in json.loads(out)} == {"SPBENCH_FAULT=slow@rank1:300%"}
    phases = "start .*, gate .*, memory .*, warm-up .*, timed and silent .*, end .*"
    found = re.findall(rf"took (.*) s: {phases}; overhead (.*) s", err)
    assert len(found) == 2
    assert all(float(beyond) < float(took) for took, beyond in found)
    assert min(float(beyond) for _, beyond in found) < 4
    for launch in range(2):
        files = [next(tmp_path.glob(f"here/logs/*launch{launch}/rank{r}.json")) for r in range(2)]
        fast, slow = (json.loads(file.read_text()) for file in files)
        for name in ("step_ms", "compute_ms"):
            assert statistics.median(slow[name]) > 1.5 * statistics.median(fast[name])


@pytest.mark.long
def test_variables_for_the_ranks_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher gets variables, or has them taken away, whatever this process has."""
    monkeypatch.setenv("SPBENCH_FAULT", "nonsense")
    (cell,) = cells(Request(combinations=every(WORK, ["dsp"], [2]), device="cpu", budget=NO_SILENT))
    for variable, said in (
        ({"SPBENCH_FAULT": None}, ""),
        ({"SPBENCH_FAULT": "slow@rank0:1%"}, "SPBENCH_FAULT=slow@rank0:1%"),
    ):
        launcher = LocalLauncher(tmp_path / "launcher.log", variable)
        with sweep_into(tmp_path / "run", launcher) as sweep:
            (record,) = run_all(sweep, [cell])
        launcher.close()
        assert (record.status, record.environment) == ("ok", said), record.reason
        assert (record.compute_ms, record.exposed_comm_ms) == (None, None)
        assert record.step_ms
    assert os.environ["SPBENCH_FAULT"] == "nonsense"


def test_a_launcher_that_is_ended_as_it_starts_leaves_nothing(tmp_path: Path) -> None:
    """The folder of its fork server's socket is removed, though torch is still being imported."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    agent = AgentProcess(tmp_path / "launcher.log", {"TMPDIR": str(temporary)})
    agent.start()
    while agent.runs and not [*temporary.glob("pymp-*/owner")]:
        time.sleep(0.01)
    agent.end(now=True)
    assert [*temporary.iterdir()] == []


@pytest.mark.parametrize("ranks", ["2", pytest.param("1,4", marks=pytest.mark.long)])
def test_a_share_of_a_group(tmp_path: Path, warm_launcher: None, ranks: str) -> None:
    """--share: one process, gated as threads, compute and memory but no step and no sent bytes."""
    words = (*SMALL, "--share", "-s", "dsp", "--gpus", ranks, "--out", "here", "--json")
    done = spbench(tmp_path, "run", *words, torch=True)
    assert done.code == 0, done.err
    rows = json.loads(done.out)
    assert [row["status"] for row in rows] == ["ok"] * len(ranks.split(","))
    for row in rows:
        assert (row["kind"], row["backend"]) == ("one_gpu_share", "fake")
        assert row["step_ms"] is None
        assert row["sent_bytes_forward"] is None
        assert row["compute_ms"] > 0
        assert row["gated_on"].startswith(row["workload"])
    memory = {row["world_size"]: row["peak_allocated_bytes"] for row in rows}
    assert 4 not in memory or memory[4] < memory[1] / 2
