"""``spbench doctor --links``: real ranks on one machine, and two nodes of the network lab."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.command_line import spbench
from helpers.spbench_process import PATHS, ROOT, finish, start

from spbench.results.link_report import LinkReport
from spbench.workload.traffic import OPS

NETLAB = ROOT / "scripts" / "netlab.sh"
SMALL = ("-w", "open-sora-1.2-480p-small", "--gpus", "2", "--device", "cpu")
TINY = ("--set", "axes={time: 4, space: 16}", "--set", "hidden=64", "--set", "heads=4")
SPBENCH = (sys.executable, "-m", "spbench")
NODES = ("--nnodes", "{nodes}", "--node-rank", "{node}", "--rdzv-endpoint", "{head}:29400")
OVERHEAD = 0.1
"""Of packets of 9000 bytes TCP gets 99.3 %; the rest is acknowledgements and handshakes."""


def test_on_one_machine(tmp_path: Path, warm_launcher: None) -> None:
    """Rows of all operations, with bytes and times that agree; kept where a run finds them."""
    done = spbench(tmp_path, "doctor", "--links", *SMALL, *TINY, "--json", torch=True)
    assert done.code == 0, done.err
    report = LinkReport.model_validate_json(done.out)
    assert {row.op for row in report.rows} == set(OPS)
    for row in report.rows:
        assert 3 <= row.repeats <= 50
        assert 0 < row.ms_low <= row.ms <= row.ms_high
        assert row.slowest_bytes_per_s > 0
    assert (report.ranks, report.backend, report.placement) == (2, "gloo", "")
    assert report.nominal_bytes_per_s is None
    (kept,) = (tmp_path / "results" / "links").glob("*-2-ranks.json")
    assert LinkReport.model_validate_json(kept.read_text()) == report
    assert f"kept in {kept.relative_to(tmp_path)}" in done.err


@pytest.mark.long
def test_under_torchrun(tmp_path: Path) -> None:
    """Ranks that another launcher has started time the same; rank 0 alone prints and keeps."""
    joined = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    done = subprocess.run(
        [sys.executable, *joined, "-m", "spbench", "doctor", "--links", *SMALL, "--json"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": PATHS},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    report = LinkReport.model_validate_json(done.stdout)
    assert (report.ranks, {row.op for row in report.rows}) == (2, set(OPS))
    assert len(list((tmp_path / "results" / "links").iterdir())) == 1


@pytest.mark.long
def test_ranks_that_fail(tmp_path: Path) -> None:
    """The first cause in a sentence, where the logs are, and exit 6; nothing is kept."""
    fault = {"SPBENCH_FAULT": "exit@rank1:init"}
    code, out, err = finish(start(tmp_path, "doctor", "--links", *SMALL, **fault))
    assert (code, out) == (6, "")
    assert "crash: rank 1" in err
    assert "logs in" in err
    assert not (tmp_path / "results").exists()


def can_have_a_lab() -> bool:
    tried = subprocess.run([NETLAB, "list"], capture_output=True, check=False)
    return os.geteuid() == 0 and tried.returncode == 0


def lab(folder: Path, rate: str, *words: str) -> subprocess.CompletedProcess[str]:
    """``spbench WORDS`` on two nodes, each with a core of its own where there are two."""
    core = "{node}" if (os.cpu_count() or 1) > 1 else "0"
    return subprocess.run(
        [
            *(NETLAB, "run", "--nodes", "2", "--rate", rate, "--timeout", "250", "--"),
            *("taskset", "-c", core, *SPBENCH, *words, *NODES),
        ],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": PATHS},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )


@pytest.mark.long
@pytest.mark.serial
@pytest.mark.skipif(not can_have_a_lab(), reason="needs root, iproute2 and network namespaces")
@pytest.mark.parametrize(("rate", "bytes_per_s"), [("100mbit", 12.5e6), ("400mbit", 50e6)])
def test_the_rate_of_a_link(tmp_path: Path, rate: str, bytes_per_s: float) -> None:
    """Every collective of 100 KB and more gets the rate of the lab's links within a tenth; a run
    there says who is link-bound, and needs no more than the links gave."""
    done = lab(tmp_path, rate, "doctor", "--links", *SMALL, "--json")
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    rates = {
        (row["op"], row["sent_bytes"]): row["bytes_per_s"] / bytes_per_s
        for row in report["rows"]
        if row["sent_bytes"] > 1e5
    }
    assert {key: rate for key, rate in rates.items() if abs(rate - 1) > OVERHEAD} == {}
    assert report["placement"] == "node0 0, node1 1"
    assert (report["link"], report["nominal_bytes_per_s"]) == ("eth0", None)
    one = (*SMALL, "-s", "dsp,megatron-sp", "--quick", "--out", "here")
    done = lab(tmp_path, rate, "run", *one)
    assert done.returncode == 0, done.stderr
    (sentence,) = (line for line in done.stdout.splitlines() if "link-bound" in line)
    assert "megatron-sp (" in sentence
    assert "doctor --links" not in done.stdout
