"""A cluster of logs as a short file: it reads as the cluster, whatever level the logs were of."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.nccl_logs import TESTS, Seconds, at_rate, text, write

from spbench.projection.costmodel.cluster_file import find
from spbench.projection.costmodel.hardware import Cluster
from spbench.projection.costmodel.short_file import short_text
from spbench.projection.microbench.imported_links import with_logs
from spbench.workload.config_names import names

TWO_HOSTS = ("node-a", "node-b")


def logs_of(folder: Path, ranks: int, times: Seconds, *tests: str, hosts: int = 1) -> list[Path]:
    """A log of each test on so many ranks."""
    return [
        write(folder, f"{test}-{ranks}.log", text(test, ranks, times, hosts=TWO_HOSTS[:hosts]))
        for test in tests or TESTS
    ]


def read_back(folder: Path, cluster: Cluster, like: str) -> Cluster:
    path = folder / "ours.yaml"
    path.write_text(short_text(cluster, like, folder))
    assert len(path.read_text().splitlines()) <= 40
    return find(str(path))


@pytest.mark.parametrize("name", names("clusters"))
def test_each_cluster_with_logs_of_one_host_reads_back(tmp_path: Path, name: str) -> None:
    """Every number, and what is drawn together."""
    base = find(name)
    of_host = min(base.ranks_of_host, base.most_ranks or 8)
    if of_host == 1:
        return
    made = with_logs("ours", base, logs_of(tmp_path, of_host, at_rate(31.0, 17.0))).cluster
    assert read_back(tmp_path, made, name) == made


@pytest.mark.parametrize("tests", [("alltoall",), ("all_gather",), ("sendrecv", "all_reduce")])
def test_what_a_level_has_from_the_level_within_stays(
    tmp_path: Path, tests: tuple[str, ...]
) -> None:
    """l20-pcie gives rates of a socket, which are the node's too until something else is said."""
    base = find("l20-pcie")
    made = with_logs("ours", base, logs_of(tmp_path, 4, at_rate(9.0, 17.0), *tests)).cluster
    again = read_back(tmp_path, made, "l20-pcie")
    assert again == made
    assert again.levels[1] == base.levels[1]


def test_logs_of_a_socket_and_of_a_node_are_one_short_file(tmp_path: Path) -> None:
    base = find("l20-pcie")
    logs = [*logs_of(tmp_path, 4, at_rate(19.0, 17.0)), *logs_of(tmp_path, 8, at_rate(11.0, 27.0))]
    made = with_logs("ours", base, logs).cluster
    assert read_back(tmp_path, made, "l20-pcie") == made


def test_logs_of_a_cluster_of_logs_are_added(tmp_path: Path) -> None:
    """A network around a file that was made of logs itself, by its path."""
    first = with_logs("first", find("hgx-h100"), logs_of(tmp_path, 8, at_rate(99.0, 17.0))).cluster
    path = tmp_path / "first.yaml"
    path.write_text(short_text(first, "hgx-h100", tmp_path))
    made = with_logs("ours", find(str(path)), logs_of(tmp_path, 16, at_rate(40.0, 30.0), hosts=2))
    assert read_back(tmp_path, made.cluster, str(path)) == made.cluster


def test_a_level_that_the_base_has_not_is_written(tmp_path: Path) -> None:
    """A network around one node of PCIe cards, by logs of two such nodes."""
    made = with_logs(
        "ours", find("l20-pcie"), logs_of(tmp_path, 16, at_rate(5.0, 30.0), hosts=2)
    ).cluster
    again = read_back(tmp_path, made, "l20-pcie")
    assert again == made
    assert [level.name for level in again.levels] == ["socket", "node", "network"]


def test_a_cluster_that_differs_in_more_has_no_short_file(tmp_path: Path) -> None:
    base = find("hgx-h100")
    with pytest.raises(ValueError, match="differs from hgx-h100 in more than its links"):
        short_text(base.model_copy(update={"nodes": 3}), "hgx-h100", tmp_path)


def test_an_operation_wins_over_an_older_entry_that_names_it_beside_others(tmp_path: Path) -> None:
    """nvl72-gb200 has 'all_gather, reduce_scatter' over the entries of hgx-b200."""
    path = tmp_path / "ours.yaml"
    path.write_text(
        "version: 1\nname: ours\nlike: nvl72-gb200\nlevels: {nvlink: {collectives: {all_gather: "
        "{gb_per_s: {at: [1], values: [7], source: seen, kind: measured}}}}}\n"
    )
    made, base = find(str(path)), find("nvl72-gb200")
    assert made.levels[0].collectives["all_gather"].gb_per_s(5.0) == 7.0
    before = base.levels[0].collectives["reduce_scatter"]
    assert made.levels[0].collectives["reduce_scatter"] == before
