"""Other packages' code between real processes: gated, counted by a witness, faults in it caught.

Of vendors torch alone is installed with spbench.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch.multiprocessing as mp
from helpers.gate_of_vendors import FAULTS, gate_vendors
from helpers.golden import Golden

from spbench.strategies.registry import BUILT_IN


def gated(ranks: int, folder: Path) -> list[dict[str, dict[str, object]]]:
    """What so many ranks wrote."""
    mp.get_context("forkserver").set_forkserver_preload(["spbench.launch.preload"])
    mp.start_processes(gate_vendors, (ranks, str(folder)), ranks, start_method="forkserver")
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, object]]]:
    return gated(4, tmp_path_factory.mktemp("vendors"))


def test_torch_passes(results: list[dict[str, dict[str, object]]], golden: Golden) -> None:
    """Both rotations and the gather of keys: values, gradients and bytes; in two groups of ranks,
    too. A mask is refused. So do those for GPUs, with what stands in for their packages."""
    wrong = results[0]["wrong"]
    golden(wrong.pop("torch-kv-gather-causal"))
    assert wrong == dict.fromkeys(wrong)
    assert len(wrong) == 14


def test_one_rank(tmp_path: Path) -> None:
    """Nothing is sent, and nothing predicted."""
    (alone,) = gated(1, tmp_path)
    assert alone["wrong"] == dict.fromkeys(alone["wrong"])
    assert len(alone["wrong"]) == 14


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_an_adapter(fault: str, results: list[dict[str, dict[str, object]]]) -> None:
    """Some rank's values or bytes are wrong."""
    assert any(of_rank["faults"][fault] for of_rank in results)


@pytest.mark.parametrize("strategy", BUILT_IN)
def test_a_witness_counts_what_transports_do(
    strategy: str, results: list[dict[str, dict[str, object]]]
) -> None:
    """Of spbench's own strategies, rank by rank, to the byte."""
    for of_rank in results:
        counted, seen = of_rank["seen"][strategy]  # type: ignore[misc]
        assert seen == counted
