"""The run that would decide: its nodes, and where this machine alone cannot."""

from __future__ import annotations

import pytest
from helpers.golden import Golden

from spbench.projection.advise.candidates import nodes, what_would_decide
from spbench.projection.costmodel.cluster_file import find
from spbench.projection.costmodel.hardware import Cluster

H100, L20, NVL72 = (find(name) for name in ("hgx-h100", "l20-pcie", "nvl72-gb200"))
LAB = H100.model_copy(update={"name": "lab", "link": "network", "levels": H100.levels[1:]})
HERE = H100.model_copy(update={"name": "here", "link": "memory", "levels": H100.levels[1:]})


def decides(cluster: Cluster, ranks: int) -> str:
    return what_would_decide(["a", "b"], ranks, cluster, ["-w", "w"])


@pytest.mark.parametrize(
    ("cluster", "ranks", "count"),
    [
        (H100, 8, 1),
        (H100, 9, 2),
        (H100, 32, 4),
        (L20, 8, 1),  # two sockets of one node
        (NVL72, 4, 1),
        (NVL72, 8, 2),  # trays of four, though NVLink joins 72
        (NVL72, 72, 18),
        (LAB, 1, 1),
        (LAB, 4, None),
        (LAB.model_copy(update={"nodes": 2}), 4, 2),
        (HERE, 4, 1),
    ],
)
def test_ranks_take_so_many_nodes(cluster: Cluster, ranks: int, count: int | None) -> None:
    assert nodes(cluster, ranks) == count


def test_on_several_nodes_each_runs_the_command(golden: Golden) -> None:
    golden(decides(H100, 8), "one node")
    golden(decides(H100, 32), "four nodes")
    golden(decides(LAB, 4), "any number of nodes")


def test_a_compiled_run_decides_between_compiled_models(golden: Golden) -> None:
    golden(what_would_decide(["a", "b"], 8, H100, ["-w", "w", "--compiled"]))
