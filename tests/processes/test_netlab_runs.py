"""Two nodes with a network of their own send as much as one, and notice a cable that is pulled."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.spbench_process import ROOT, SMALL, finish, rows_of, start

from spbench.projection.costmodel.cluster_file import find

NETLAB = ROOT / "scripts" / "netlab.sh"
MANY = (*SMALL, "-s", "dsp", "--launches", "60", "--hang-after", "8", "--out", "here")
SPBENCH = (sys.executable, "-m", "spbench", "run")
NODES = ("--nnodes", "{nodes}", "--node-rank", "{node}", "--rdzv-endpoint", "{head}:29400")
TORCHRUN = (
    *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "{nodes}"),
    *("--nproc-per-node", "2", "--node-rank", "{node}", "--master-addr", "{head}"),
    *("-m", "spbench", "run"),
)


def can_have_a_lab() -> bool:
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "tc"))):
        return False
    tried = subprocess.run([NETLAB, "list"], capture_output=True, check=False)
    return tried.returncode == 0


pytestmark = pytest.mark.skipif(
    not can_have_a_lab(), reason="needs root, iproute2 and network namespaces"
)


def lab(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """``netlab run`` of two nodes; all that it says."""
    return subprocess.run(
        [NETLAB, "run", "--nodes", "2", "--timeout", "300", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=320,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )


def sent(row: dict[str, str]) -> tuple[str, ...]:
    phases = ("forward", "backward", "gradients")
    return (row["strategy"], *(row[f"sent_bytes_{phase}"] for phase in phases))


@pytest.mark.long
def test_the_same_volumes_as_on_one_node(tmp_path: Path) -> None:
    """Four ranks send as much on two nodes, under torchrun or spbench, as on one machine."""
    words = (*SMALL, "-s", "dsp,ulysses")
    under = lab(tmp_path, "--rate", "200mbit", "--", *TORCHRUN, *words, "--out", "under")
    assert under.returncode == 0, under.stderr
    each = lab(tmp_path, "--", *SPBENCH, *NODES, *words, "--gpus", "4", "--out", "each")
    assert each.returncode == 0, each.stderr
    assert "ranks: 4 on node0 0-1, node1 2-3" in each.stderr
    code, _, err = finish(start(tmp_path, "run", *words, "--gpus", "4", "--out", "one"))
    assert code == 0, err
    alone = [sent(row) for row in rows_of(tmp_path / "one")]
    for name in ("under", "each"):
        rows = rows_of(tmp_path / name)
        assert [sent(row) for row in rows] == alone
        assert {row["placement"] for row in rows} == {"node0 0-1, node1 2-3"}


@pytest.mark.long
def test_a_network_is_timed(tmp_path: Path) -> None:
    """Large messages get most of the rate that the links have."""
    words = ("-g", "2", "-w", "latte-1-small", "--device", "cpu")
    calibrate = (*SPBENCH[:-1], "calibrate", "lab", *NODES, *words)
    done = lab(tmp_path, "--rate", "100mbit", "--", *calibrate)
    assert done.returncode == 0, done.stderr
    timed = find(str(tmp_path / "results" / "clusters" / "lab.yaml"))
    link_gb_per_s = 100e6 / 8 / 1e9
    for op, each in timed.levels[0].collectives.items():
        assert 0.7 < each.gb_per_s(16.0) / link_gb_per_s < 1.05, op


@pytest.mark.long
def test_a_pulled_cable_with_a_launcher_each(tmp_path: Path) -> None:
    """A row names the node within the limit; both nodes exit with 6."""
    words = (*MANY, "--gpus", "4")
    cut = ("--cut", "1@file:here/logs/*launch1/job.json")
    done = lab(tmp_path, *cut, "--", *SPBENCH, *NODES, *words)
    assert done.returncode == 6, done.stderr
    assert "node1 ended with 6" in done.stderr
    *finished, row = rows_of(tmp_path / "here")
    assert {one["status"] for one in finished} == {"ok"}
    assert (row["status"], row["reason"]) == (
        "comm_error",
        "node 1 (node1) has not answered for 8 s",
    )


@pytest.mark.long
def test_a_pulled_cable_under_torchrun(tmp_path: Path) -> None:
    """Rank 0 names the ranks that are not reached, and writes the row before torchrun ends it."""
    cut = ("--cut", "1@file:here/logs/*launch1/rank0.json")
    done = lab(tmp_path, *cut, "--", *TORCHRUN, *MANY)
    rows = rows_of(tmp_path / "here")
    (row,) = (one for one in rows if one["status"] not in ("ok", "skipped"))
    assert row["status"] == "comm_error", done.stderr
    assert row["reason"].startswith("rank 2 (node1) and rank 3 (node1) left no word: dead, hung")
