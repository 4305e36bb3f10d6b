"""scripts/gpu_suite.sh, gone through on the CPU in its small form."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from helpers.golden import NOW, Golden
from helpers.stored_rows import stored_latest

from spbench.results.record import Record
from spbench.workload.catalogue import find

pytestmark = pytest.mark.long

SCRIPTS = Path(__file__).parents[2] / "scripts"
DTYPES = ("float64", "float32", "bfloat16")
ONE, TOGETHER = "verify-{}", "verify-{}-2-ranks-on-one-device"
GATES = [name.format(dtype) for name in (ONE, TOGETHER) for dtype in DTYPES]


def suite(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"DEVICE": "cpu", "PYTHON": sys.executable, **variables}
    return subprocess.run(
        [str(SCRIPTS / "gpu_suite.sh"), str(folder)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder that the suite wrote, and what it printed."""
    folder = tmp_path_factory.mktemp("suite") / "run"
    ended = suite(folder, BUDGET_S="300", FAULTS="kill@rank1:step3")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return folder, ended.stdout


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """scripts/gpu_suite.py, which is no part of the package."""
    spec = importlib.util.spec_from_file_location("gpu_suite", SCRIPTS / "gpu_suite.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def by_kind(folder: Path, kind: str) -> list[Record]:
    return [record for record in stored_latest(folder) if record.kind == kind]


def test_it_measures_and_it_takes_shares(done: tuple[Path, str]) -> None:
    """Both kinds of rows, all ok, the shares with the most ranks first."""
    folder, _ = done
    measured, shares = by_kind(folder, "measured"), by_kind(folder, "one_gpu_share")
    assert {record.status for record in measured + shares} == {"ok"}
    assert [(r.strategy, r.world_size) for r in measured] == [("dsp", 2), ("rsa", 2)]
    assert [r.world_size for r in shares] == [4, 4, 2, 2, 1, 1]
    assert all(r.compute_ms and r.peak_allocated_bytes for r in shares)


@pytest.mark.parametrize("gate", GATES)
def test_every_gate_is_kept(done: tuple[Path, str], gate: str) -> None:
    found = json.loads((done[0] / f"{gate}.json").read_text(encoding="utf-8"))
    assert {verdict["strategy"] for verdict in found} == {"dsp", "rsa"}
    assert {verdict["outcome"] for verdict in found} == {"passed"}


def test_one_folder_holds_everything(done: tuple[Path, str]) -> None:
    folder, printed = done
    files = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    assert files == {
        *(f"{gate}.json" for gate in GATES),
        *("runs.csv", "run.json", "samples", "fingerprints", "logs", "plots"),
        *("compare.txt", "ranks-on-one-device.txt", "nodes-on-one-device.txt", "suite.log"),
        *("cluster.yaml", "by-hand.txt"),
    }
    assert (folder / "plots" / "memory.png").exists()
    assert "one gpu share" in (folder / "compare.txt").read_text(encoding="utf-8")
    assert (folder / "suite.log").read_text(encoding="utf-8") == printed
    assert "one_gpu_share, dsp-720m-small depth=1: 6 ok" in printed


def test_nodes_that_share_a_device(done: tuple[Path, str]) -> None:
    """Whole: the bytes are as predicted. With a rank that is killed: a row that says so."""
    said = (done[0] / "nodes-on-one-device.txt").read_text(encoding="utf-8")
    assert "no fault: exit 0\n  dsp: ok.\n    gate " in said
    assert said.count("as predicted") == 2
    assert "kill@rank1:step3: exit 3\n  dsp: crash. rank 1 (" in said


def test_without_time_nothing_is_run_and_it_says_so(tmp_path: Path, golden: Golden) -> None:
    ended = suite(tmp_path, BUDGET_S="0")
    assert ended.returncode == 6
    golden(ended.stdout, hide=NOW | {r", \d+ s\n": ", N s\n", re.escape(tmp_path.name): "FOLDER"})


def test_a_gate_that_failed_is_the_exit_code(done: tuple[Path, str], script: ModuleType) -> None:
    gate = done[0] / "verify-float32.json"
    passed = gate.read_text(encoding="utf-8")
    assert script.summary(done[0]) == 0
    gate.write_text(passed.replace("passed", "WRONG", 1), encoding="utf-8")
    assert script.summary(done[0]) == script.GATE_FAILED
    gate.write_text(passed, encoding="utf-8")


def test_a_file_that_is_no_json_is_not_passed(tmp_path: Path, script: ModuleType) -> None:
    path = tmp_path / "verify-3-ranks-on-one-device.json"
    path.write_text("NCCL version 2.28.9\n[]", encoding="utf-8")
    assert not script._gate(path)


def test_nodes_that_send_what_was_not_predicted(tmp_path: Path, script: ModuleType) -> None:
    """Unless a fault was planted, whose wrong row is what is wanted."""
    path = tmp_path / "nodes-on-one-device.txt"
    assert script._of_nodes(path)
    for said, right in (("dsp: wrong_result.\n    WRONG", False), ("corrupt@rank1: WRONG", True)):
        path.write_text(said, encoding="utf-8")
        assert script._of_nodes(path) is right


def test_the_cheapest_cells_come_first(
    script: ModuleType, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    """Many ranks have little to do each, and cells that cannot run cost nothing."""
    cells = [
        {"ranks": ranks, "strategy": "rsa", "sharded": "time", "why_not": None}
        for ranks in (1, 2, 64)
    ]
    assert script.order(find("dsp-720m"), cells) == "64,2,1"
    golden(capsys.readouterr().err)
    cells[0]["why_not"] = "some reason"
    assert script.order(find("dsp-720m"), cells) == "1,64,2"


def test_an_estimate_goes_by_operations_and_recomputation(script: ModuleType) -> None:
    """1486 TFLOP a step, and a third more for the blocks that are computed twice."""
    whole = script.estimate(find("dsp-720m"), "dsp", "time", 1)
    share = script.estimate(find("dsp-720m"), "dsp", "time", 8)
    assert whole.step_s * script.FLOP_PER_S == pytest.approx(1486e12 * 4 / 3, rel=1e-3)
    assert share.step_s == pytest.approx(whole.step_s / 8)
    assert share.peak_bytes < whole.peak_bytes
    rows = script.estimate(find("dsp-720m"), "rsa", "time", 1).peak_bytes - whole.peak_bytes
    assert rows == 3 * 16 * 64 * 64 * 4096 * 2
