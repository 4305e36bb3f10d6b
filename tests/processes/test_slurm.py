"""Under Slurm, two nodes on this machine: sbatch and srun, a job that is cancelled, a dead node."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from helpers.slurm_cluster import SlurmCluster, slurm_cluster, why_no_slurm
from helpers.spbench_process import LONG, ROOT, SMALL, alive, rows_of

SCRIPT = str(ROOT / "scripts" / "slurm.sh")
PHASES = ("forward", "backward", "gradients")
ON_TWO = ("--nodes=2", "--ntasks-per-node=1")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(bool(why_no_slurm()), reason=why_no_slurm() or "Slurm is here"),
]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with slurm_cluster(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


def submit(slurm: SlurmCluster, folder: Path, *words: str) -> str:
    """The number of the job that the batch script makes of ``spbench run WORDS`` on both nodes."""
    options = ("--parsable", "--nodes=2", f"--output={folder / 'job.log'}")
    done = slurm.run("sbatch", *options, SCRIPT, *words, at=folder, OUT=str(folder / "out"))
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def until_a_launch_runs(folder: Path, within_s: float = 90.0) -> None:
    """Waits until ranks of the job have written a log."""
    deadline = time.monotonic() + within_s
    while not [*(folder / "out").glob("logs/*/logs/*/attempt_0/0/stderr.log")]:
        assert time.monotonic() < deadline, (folder / "job.log").read_text()
        time.sleep(0.1)


def test_a_batch_job_on_two_nodes(slurm: SlurmCluster, tmp_path: Path) -> None:
    """The script of the repository as it is: one spbench a node, ranks on both, no flag for them;
    the same OUT again has nothing left to do."""
    words = (*SMALL, "-s", "dsp,ulysses", "-g", "3")
    for _ in range(2):
        slurm.ends(submit(slurm, tmp_path, *words), 150)
        rows = rows_of(tmp_path / "out")
        said = (tmp_path / "job.log").read_text()
        assert [(row["strategy"], row["status"]) for row in rows] == [
            ("dsp", "ok"),
            ("ulysses", "ok"),
        ], said
        host = socket.gethostname()
        assert {row["placement"] for row in rows} == {f"{host} 0-2"}  # both nodes have one name
        for row in rows:
            sent = [row[f"sent_bytes_{phase}"] for phase in PHASES]
            assert sent == [row[f"predicted_bytes_{phase}"] for phase in PHASES]
        assert f"ranks: 3 on {host} 0-1, {host} 2" in said
        assert f"node 1 of 2, following node 0 at {host}:" in said


def test_srun_alone(slurm: SlurmCluster, tmp_path: Path) -> None:
    """As in docs/clusters.md; more tasks on a node than one are refused on each of them."""
    words = ("spbench", "run", *SMALL, "-s", "dsp", "-g", "3", "--out", "here")
    done = slurm.run("srun", *ON_TWO, "--cpu-bind=none", *words, at=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [row["status"] for row in rows_of(tmp_path / "here")] == ["ok"]
    many = slurm.run("srun", "--nodes=2", "--ntasks=2", "--overcommit", "hostname", at=tmp_path)
    assert many.returncode == 0, many.stderr
    done = slurm.run("srun", "--nodes=1", "--ntasks=2", "--overcommit", *words, at=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "srun started 2 tasks on 1 nodes, but spbench starts the ranks itself" in done.stderr


def test_a_batch_script_without_srun(slurm: SlurmCluster, tmp_path: Path) -> None:
    """It runs on the first node alone, and says so."""
    script = tmp_path / "job.sh"
    script.write_text('#!/bin/sh\nexec spbench run "$@" --out here\n')
    options = (*ON_TWO, "--wait", f"--output={tmp_path / 'job.log'}")
    done = slurm.run("sbatch", *options, str(script), *SMALL, "-s", "dsp", "-g", "2", at=tmp_path)
    said = (tmp_path / "job.log").read_text()
    assert done.returncode == 0, said
    assert "warning: this job has 2 nodes, and ranks start on this one alone" in said
    assert [row["placement"] for row in rows_of(tmp_path / "here")] == [""]


def test_a_job_that_is_cancelled(slurm: SlurmCluster, tmp_path: Path) -> None:
    """Nothing of it is left on either node, and the run can be resumed."""
    job = submit(slurm, tmp_path, *LONG, "--launches", "9")
    until_a_launch_runs(tmp_path)
    processes = [one for node in slurm.nodes for one in slurm.processes_of(node)]
    assert processes
    slurm.answer("scancel", job)
    slurm.ends(job)
    assert alive(processes, 20) == []
    said = (tmp_path / "job.log").read_text()
    assert f"stopped; what was finished is kept in {tmp_path / 'out'}" in said
    assert "resume with: spbench run --join-timeout 300 -w earthformer-small" in said


def test_a_node_that_dies(slurm: SlurmCluster, tmp_path: Path) -> None:
    """The row names the node that is lost, node 0 stops with 6, and nothing is left."""
    job = submit(slurm, tmp_path, *LONG, "--launches", "9", "--hang-after", "20s")
    until_a_launch_runs(tmp_path)
    second = slurm.processes_of(slurm.nodes[1])
    ours = [one for one in second if "slurmstepd" not in " ".join(one.cmdline())]
    assert ours
    for process in ours:
        process.kill()
    slurm.ends(job, 120)
    said = (tmp_path / "job.log").read_text()
    (row,) = rows_of(tmp_path / "out")
    assert row["status"] == "comm_error", said
    assert row["reason"] == f"node 1 ({socket.gethostname()}) has not answered for 20 s"
    assert "Error: a node is lost; go on when it is back" in said
    psutil.wait_procs(ours, timeout=10)
    assert [one for node in slurm.nodes for one in slurm.processes_of(node)] == []
