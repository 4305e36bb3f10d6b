"""What the papers publish: the files of configs/published/papers/."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml

from spbench.workload.catalogue import configs

ROOT = Path(__file__).parents[2]
# What published engines take beyond our terms stands beside the published points.
sys.path.append(str(ROOT / "benchmarks" / "published"))
PAGE = ROOT / "docs" / "papers.md"


def facts(paper: str) -> dict[str, Any]:
    """The facts of ``dsp`` or ``rsa``."""
    path = configs() / "published" / "papers" / f"{paper}.yaml"
    data: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return data
