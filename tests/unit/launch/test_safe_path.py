"""Processes that are started import nothing of the current folder, unless a plug-in lies there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from helpers.spbench_process import PLUGINS, ROOT

from spbench.doctor import torch_probe
from spbench.launch.process import AgentProcess, safe_path

OF_THE_USER = "a file of the user"
BROKEN = f"raise RuntimeError({OF_THE_USER!r})\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder of a user who has a statistics.py."""
    (tmp_path / "statistics.py").write_text(BROKEN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return tmp_path


def test_the_launcher_starts_beside_a_file_of_a_modules_name(here: Path) -> None:
    """It imports torch, and ends by itself with its input."""
    agent = AgentProcess(here / "launcher.log", {}, grace_s=60.0)
    agent.start()
    agent.end(now=False)
    assert OF_THE_USER not in (here / "launcher.log").read_text()


def test_the_doctor_asks_torch_beside_such_a_file(here: Path) -> None:
    done = torch_probe.probe("cpu", 60, [sys.executable, "-c", "import statistics; print('{}')"])
    assert OF_THE_USER not in str(done)


def test_python_m_spbench_beside_such_a_file(here: Path) -> None:
    """The command itself looks there last, which a plug-in of that folder is found by."""
    (here / "click.py").write_text(BROKEN)
    words = [sys.executable, "-m", "spbench", "list", "strategies"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_plug_in_in_the_current_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks find it where the command does."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.chdir(PLUGINS)
    others = [path for path in sys.path if path != str(PLUGINS)]
    monkeypatch.setattr(sys, "path", [*others, str(PLUGINS)])
    assert safe_path() == {"PYTHONSAFEPATH": "1", "PYTHONPATH": str(PLUGINS)}
    monkeypatch.setattr(sys, "path", others)
    assert safe_path() == {"PYTHONSAFEPATH": "1"}
