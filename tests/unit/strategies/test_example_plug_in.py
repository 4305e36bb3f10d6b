"""The example of a strategy in its own package joins by its entry point, and passes the gate."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from helpers.command_line import ROOT
from helpers.gate_on_threads import prove, why_wrong

from spbench.strategies import registry
from spbench.strategies.registry import GROUP
from spbench.workload.catalogue import find, with_settings

EXAMPLE = ROOT / "examples" / "strategy_plugin"
SHAPES = ("axes-2d-uneven", "axes-3d-uneven", "few-key-heads", "joint")


@pytest.fixture
def plain_gather(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Its name, with what pip would write of its pyproject.toml beside it."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    ((name, place),) = project["entry-points"][GROUP].items()
    written = tmp_path / "spbench_plain_gather-0.1.0.dist-info"
    written.mkdir()
    (written / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\n")
    (written / "entry_points.txt").write_text(f"[{GROUP}]\n{name} = {place}\n")
    for folder in (EXAMPLE, tmp_path):
        monkeypatch.syspath_prepend(str(folder))
    return str(name)


def test_it_is_right_on_every_shape_that_it_serves(plain_gather: str) -> None:
    """Values, gradients and bytes; what it does not serve it declines in a sentence."""
    assert plain_gather in registry.places()
    strategy = registry.load(plain_gather)
    for shape in SHAPES:
        work = with_settings(find(shape, "verify"), ["dtype=float64"])
        assert not why_wrong(prove(work, strategy, 3)), shape
    assert "no mask" in (strategy.why_not(find("causal", "verify"), 2) or "")
    assert strategy.why_not(find("causal", "verify"), 1) is None


@pytest.mark.long
def test_pip_installs_it(tmp_path: Path) -> None:
    """Then ``spbench list strategies`` has it, and ``verify`` passes."""
    package = shutil.copytree(EXAMPLE, tmp_path / "package")  # where it is built files are left
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    where = ["--no-build-isolation", "--target", str(tmp_path / "site"), str(package)]
    subprocess.run([*pip, *where], check=True, capture_output=True)
    path = os.pathsep.join([str(tmp_path / "site"), str(ROOT)])
    words = ["verify", "-s", "plain-gather", "--gpus", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "spbench", *words],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "plain-gather" in done.stdout
