"""gloo between real processes: values, bytes as c10d itself is handed them, and own models."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch.multiprocessing as mp
from helpers.rank_programs import check_network, prove_own_models


def start(program: Callable[[int, int, str], None], ranks: int, folder: Path) -> None:
    """Runs a program of ranks to its end; torch is imported once for all that this file starts."""
    mp.get_context("forkserver").set_forkserver_preload(["spbench.launch.preload"])
    mp.start_processes(program, (ranks, str(folder)), ranks, start_method="forkserver")


@pytest.mark.parametrize(
    "ranks", [1, *(pytest.param(few, marks=pytest.mark.long) for few in (2, 3)), 4]
)
def test_network(ranks: int, tmp_path: Path) -> None:
    """Collectives are right; c10d is handed exactly the bytes that spbench counts and predicts."""
    start(check_network, ranks, tmp_path)
    for rank in range(ranks):
        results = json.loads((tmp_path / f"{rank}.json").read_text())
        assert results["collectives"] == dict.fromkeys(results["collectives"], True)
        for name, step in results["steps"].items():
            assert step["counted"] == pytest.approx(step["predicted"], rel=1e-12), name
            assert step["seen"] == pytest.approx(step["counted"], rel=1e-12), name
        assert results["largest"] == [ranks - 1, 0]
        assert results["texts"] == ["é" * r for r in range(ranks)]
        assert results["blank"] == [""] * ranks


ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "own-model.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.long)])
def test_own_models(ranks: int, tmp_path: Path) -> None:
    """examples/own_model.py proves its two forms; groups of a mesh of one's own do, too, and
    DistributedDataParallel beside them gives what docs/own-model.md says."""
    start(prove_own_models, ranks, tmp_path)
    said = (tmp_path / "0.txt").read_text()
    if ranks == 2:
        assert counts(said) == counts(PAGE.partition("## DSP")[0])
    assert said.count(f"equal to one device on {ranks} ranks") == 2
    for rank in range(ranks):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert (found["ranks"], found["uncounted"]) == (2, {})
        assert found["worst"] < 1e-5


@pytest.mark.long
def test_the_command_of_the_page() -> None:
    """torchrun starts the example as docs/own-model.md says."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    said = subprocess.run(
        [*command, "examples/own_model.py"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
    assert counts(said) == counts(PAGE.partition("## DSP")[0])


def counts(said: str) -> list[str]:
    """Lines of bytes, which are the same on every machine."""
    return re.findall(r"^bytes sent by .*$", said, re.MULTILINE)
