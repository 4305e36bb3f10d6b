"""A git repository that holds this spbench, for checks of one commit against another."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import spbench


def git(folder: Path, *words: str) -> str:
    name = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(
        ["git", "-C", str(folder), *name, *words], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A git repository with one commit, which holds this spbench."""
    folder = tmp_path / "repository"
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(spbench.__file__).parent, folder / "spbench", ignore=ignore)
    configs = Path(spbench.__file__).parents[1] / "configs"
    shutil.copytree(configs, folder / "configs")
    git(folder.parent, "init", "-q", str(folder))
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "first")
    return folder
