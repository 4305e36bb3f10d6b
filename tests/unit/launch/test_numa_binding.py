"""NUMA nodes: read from the kernel's files, bound to by torch elastic, and told of each rank."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from spbench.launch import ranks
from spbench.launch.launcher import LaunchResult
from spbench.launch.ranks import NodeRanks, numa_options, run_ranks
from spbench.results.machine import numa_binding, numa_nodes
from spbench.workload.case import Job


def machine(folder: Path, *cores: str) -> Path:
    """The files of a machine with a node for each list of cores."""
    for node, text in enumerate(cores):
        (folder / f"node{node}").mkdir()
        (folder / f"node{node}" / "cpulist").write_text(f"{text}\n")
    return folder


def test_nodes_of_a_machine(tmp_path: Path) -> None:
    """A node of memory alone has no cores to run on; a damaged file is no node."""
    found = numa_nodes(machine(tmp_path, "0-1,8", "", "2-3", "broken"))
    assert found == {0: {0, 1, 8}, 2: {2, 3}}
    assert numa_nodes(tmp_path / "nowhere") == {}


@pytest.mark.parametrize(
    ("own", "said"),
    [({0}, "numa0"), ({2, 3}, "numa1"), ({0, 4}, "numa0+2"), ({0, 2, 5}, "any"), ({99}, "")],
)
def test_where_a_rank_is_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: set[int], said: str
) -> None:
    """The cores that it may use say on which nodes it runs, whoever bound it."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: own)
    assert numa_binding(machine(tmp_path, "0-1", "2-3", "4-5")) == said


def test_one_node_is_no_binding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with one node, or a kernel that does not say, leaves the column blank."""
    assert numa_binding(tmp_path) == ""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert numa_binding(machine(tmp_path, "0-3")) == ""


@pytest.fixture
def two_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with two NUMA nodes and numactl, which torch elastic's binding needs."""
    monkeypatch.setattr(ranks, "numa_nodes", lambda: {0: {0}, 1: {1}})
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")


@pytest.mark.usefixtures("two_nodes")
def test_ranks_of_gpus_are_bound() -> None:
    """To the node of each one's GPU, and a binding that fails is no error; not on a CPU."""
    options = numa_options("cuda")["numa_options"]
    assert (options.affinity_mode.value, options.should_fall_back_if_binding_fails) == (
        "node",
        True,
    )
    assert numa_options("cpu") == {}


@pytest.mark.usefixtures("two_nodes")
@pytest.mark.parametrize("missing", ["numactl", "second node", "argument", "module"])
def test_nothing_is_bound_where_it_is_not_offered(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    """Without numactl, a second node, or a torch that binds, ranks start as they always did."""
    if missing == "numactl":
        monkeypatch.setattr("shutil.which", lambda _: None)
    elif missing == "second node":
        monkeypatch.setattr(ranks, "numa_nodes", lambda: {0: {0, 1}})
    elif missing == "argument":
        monkeypatch.setattr(ranks, "start_processes", lambda name, start_method: None)
    else:
        monkeypatch.setitem(sys.modules, "torch.numa.binding", None)
    assert numa_options("cuda") == {}


@pytest.mark.usefixtures("two_nodes")
def test_a_rank_has_its_variables_before_it_is_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch asks CUDA where the GPU is, and CUDA reads its variables once."""
    given: dict[str, Any] = {}

    def start_processes(numa_options: object = None, **arguments: Any) -> None:
        given.update(arguments, numa_options=numa_options)
        raise RuntimeError("no GPU here")

    monkeypatch.setattr(ranks, "start_processes", start_processes)
    Job(ranks=2, device="cuda", environment={"CUDA_X": "1"}).write(tmp_path)
    result = run_ranks(tmp_path, NodeRanks(0, [2], tmp_path / "meeting"), lambda: None)
    assert result == LaunchResult(ok=False, why="RuntimeError: no GPU here")
    assert [given["envs"][rank]["CUDA_X"] for rank in range(2)] == ["1", "1"]
    assert given["numa_options"] is not None
