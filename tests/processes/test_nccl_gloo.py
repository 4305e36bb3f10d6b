"""gloo between real processes: values, and bytes as c10d itself is handed them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch.multiprocessing as mp
from helpers.rank_programs import check_network


@pytest.mark.parametrize(
    "ranks", [*(pytest.param(few, marks=pytest.mark.long) for few in (1, 2, 3)), 4]
)
def test_network(ranks: int, tmp_path: Path) -> None:
    """Collectives are right; c10d is handed exactly the bytes that spbench counts and predicts."""
    mp.get_context("forkserver").set_forkserver_preload(["spbench.launch.preload"])  # once
    mp.start_processes(check_network, (ranks, str(tmp_path)), ranks, start_method="forkserver")
    for rank in range(ranks):
        results = json.loads((tmp_path / f"{rank}.json").read_text())
        assert results["collectives"] == dict.fromkeys(results["collectives"], True)
        for name, step in results["steps"].items():
            assert step["counted"] == pytest.approx(step["predicted"], rel=1e-12), name
            assert step["seen"] == pytest.approx(step["counted"], rel=1e-12), name
        assert results["largest"] == [ranks - 1, 0]
        assert results["texts"] == ["é" * r for r in range(ranks)]
        assert results["blank"] == [""] * ranks
