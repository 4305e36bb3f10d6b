"""No GPU, no driver, one that does not fit, no pynvml: everything on a CPU works."""

from __future__ import annotations

import csv
import os
import sys
from pathlib import Path

import pynvml
import pytest
from helpers.command_line import ROOT, record, spbench
from helpers.examples import ALL
from helpers.golden import Golden
from helpers.in_process import inside

from spbench.errors import DONE, USAGE
from spbench.results.store import Store

RAISING = """\
class NVMLError(Exception):
    pass


class {name}(NVMLError):
    pass


def nvmlInit():
    raise {name}("as of a fake")
"""
FAKES = {
    "no library": RAISING.format(name="NVMLError_LibraryNotFound"),
    "no driver": RAISING.format(name="NVMLError_DriverNotLoaded"),
    "mismatch": RAISING.format(name="NVMLError_LibRmVersionMismatch"),
    "no pynvml": "raise ImportError('as of a fake')\n",
}
"""Contents of a pynvml.py."""
COMMANDS = [
    "list workloads",
    "list runs",
    "compare",
    "compare older made-up",
    "plot",
    "baseline list",
    "check --baseline good made-up",
    "show axial-weather-small -s dsp -g 2",
    "run -w earthformer-small -s dsp --dry-run",
]
ASKING = COMMANDS[-2:]
"""Those that choose ranks, and so look for GPUs; a short run asks no others but once."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs and a baseline."""
    folder = tmp_path_factory.mktemp("place")
    for name in ("older", "made-up"):
        with Store(folder / "results" / name) as store:
            store.append(record("dsp", step_ms=10.0, run_id=name))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert inside("baseline", "set", "good", "--force").code == DONE
    return folder


@pytest.fixture
def here(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where commands run, and the folder whose pynvml they find first."""
    monkeypatch.chdir(place)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    return tmp_path


@pytest.mark.parametrize("fake", FAKES)
def test_every_command_does_without(here: Path, fake: str) -> None:
    """With the exit codes of a machine that has no GPU, and not a word about it."""
    (here / "pynvml.py").write_text(FAKES[fake])
    for command in COMMANDS if ALL or fake == "no driver" else ASKING:
        done = inside(*command.split())
        assert (done.code, done.err) in ((DONE, ""), (5, "")), (command, done)
        assert "as of a fake" not in done.out
    used = sys.modules.get("pynvml")
    assert used is None if fake == "no pynvml" else used is not None and used is not pynvml


@pytest.mark.parametrize("fake", FAKES)
def test_asking_for_a_gpu_is_answered(here: Path, fake: str, golden: Golden) -> None:
    """Exit 2 with what would work."""
    (here / "pynvml.py").write_text(FAKES[fake])
    done = inside("run", "--device", "cuda")
    assert (done.code, done.out) == (USAGE, "")
    golden(done.err)


@pytest.mark.long
def test_a_run_on_the_cpu(tmp_path: Path) -> None:
    """Ranks, whose torch asks for pynvml too, measure without."""
    (tmp_path / "pynvml.py").write_text(FAKES["no pynvml"])
    paths = os.pathsep.join([str(tmp_path), str(ROOT)])
    words = ["run", "-w", "earthformer-small", "--set", "depth=1", "--quick", "-s", "dsp"]
    done = spbench(tmp_path, *words, "-g", "2", "--out", "here", torch=True, PYTHONPATH=paths)
    assert done.code == DONE, done.err
    with (tmp_path / "here" / "runs.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert (row["status"], row["device"], row["gpu"]) == ("ok", "cpu", "cpu")
