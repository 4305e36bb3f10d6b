"""Several nodes: how a node is recognised and named, and which ranks it takes."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from helpers.golden import Golden

from spbench.cli.selection import cluster_of, first_host
from spbench.errors import USAGE, Failure
from spbench.launch.cluster import (
    Cluster,
    Member,
    difference,
    placement,
    placement_of,
    roster_of,
    source_digest,
    spread,
)
from spbench.launch.local import LocalLauncher

HERE = "127.0.0.1"
SLURM = {
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NODELIST": "localhost,elsewhere",
    "SLURM_JOB_ID": "7042",
}


def member(node: int, **versions: str) -> Member:
    return Member(node=node, host=f"node-{node}", versions={"torch": "2.13"} | versions)


@pytest.mark.parametrize(
    ("ranks", "per_node", "counts"),
    [(4, 2, [2, 2]), (3, 2, [2, 1]), (2, 2, [2]), (1, 8, [1]), (8, 8, [8]), (9, 8, [8, 1])],
)
def test_one_node_is_full_before_the_next(ranks: int, per_node: int, counts: list[int]) -> None:
    """One node is full before the next, so a group that fits into a node is inside one."""
    assert spread(ranks, per_node, 2) == counts


def test_which_ranks_are_where() -> None:
    """Hosts come in the order of the nodes, each with a rank or a range."""
    assert placement([2, 1], ["a", "b"]) == "a 0-1, b 2"
    assert placement([2, 1], ["a", "a"]) == "a 0-1, a 2"
    assert placement_of(["a", "a", "b", "a"]) == "a 0-1, b 2, a 3"


def test_a_roster_names_who_is_missing_and_what_differs(golden: Golden) -> None:
    """The sentence names the endpoint and what would help."""
    cluster = Cluster(nodes=3, node=0, head="node-0", port=29400, wait_s=5.0)
    missing = roster_of(cluster, [member(0), member(2)])
    golden(missing.why_not, "one is missing")
    alone = roster_of(cluster, [member(0)])
    golden(alone.why_not, "two are missing")
    other = roster_of(cluster, [member(0), member(1), member(2, torch="2.11")])
    golden(other.why_not, "one differs")
    assert roster_of(cluster, [member(2), member(0), member(1)]).hosts == [
        "node-0",
        "node-1",
        "node-2",
    ]
    golden(difference([("a", {"x": "1"}), ("b", {})]), "of none and one")


def test_code_that_differs_has_another_digest(tmp_path: Path) -> None:
    """A file that is changed, renamed or new changes the digest."""
    (tmp_path / "a.py").write_text("1\n")
    first = source_digest(tmp_path)
    (tmp_path / "b.txt").write_text("no code\n")
    assert source_digest(tmp_path) == first
    (tmp_path / "a.py").write_text("2\n")
    second = source_digest(tmp_path)
    (tmp_path / "a.py").rename(tmp_path / "c.py")
    assert len({first, second, source_digest(tmp_path)}) == 3


@pytest.mark.parametrize(
    ("hosts", "first"),
    [
        ("gpu[03-07,11],cpu1", "gpu03"),
        ("gpu[3,5]", "gpu3"),
        ("a,b", "a"),
        ("node-7", "node-7"),
        ("rack1-n[01-02]-ib", "rack1-n01-ib"),
        ("c[1-2]n[3,4],d", "c1n3"),
    ],
)
def test_the_first_of_slurms_nodes(hosts: str, first: str) -> None:
    """Host lists are read in Slurm's short form."""
    assert first_host(hosts) == first


def test_under_srun_nothing_needs_to_be_said() -> None:
    """Nodes, this one's number, the head and a port of the job come from Slurm; flags beat it."""
    found = cluster_of(None, None, None, 300.0, SLURM)
    assert found is not None
    assert (found.nodes, found.node, found.head, found.port) == (2, 1, "localhost", 29442)
    told = cluster_of(2, 0, f"{HERE}:1234", 300.0, SLURM)
    assert told is not None
    assert (told.node, told.port) == (0, 1234)


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"SLURM_NNODES": "2", "SLURM_NODEID": "0"},
        SLURM | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_NUM_NODES": "1"},
        SLURM | {"RANK": "1", "WORLD_SIZE": "2"},
    ],
)
def test_a_machine_alone(environ: dict[str, str]) -> None:
    """A batch script outside srun, a step of one task and torchrun's ranks are not a cluster."""
    assert cluster_of(None, None, None, 300.0, environ) is None


@pytest.mark.parametrize(
    "environ",
    [
        {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"},
        {"PMI_SIZE": "2", "PMI_RANK": "0"},
        {"MPI_LOCALNRANKS": "2", "MPI_LOCALRANKID": "0"},
        {"MV2_COMM_WORLD_SIZE": "2", "MV2_COMM_WORLD_RANK": "0"},
        {"PMIX_RANK": "1"},
        # mpirun inside a job: the step is that of its own helper on this node.
        {"OMPI_COMM_WORLD_SIZE": "8"} | SLURM,
    ],
)
def test_copies_that_mpirun_started_are_refused(environ: dict[str, str], golden: Golden) -> None:
    """As under srun with several tasks a node: two runs would measure each other."""
    with pytest.raises(Failure) as caught:
        cluster_of(None, None, None, 1.0, environ)
    golden(caught.value)
    assert caught.value.code == USAGE
    assert next(iter(environ)).rpartition("_")[0] in str(caught.value)


@pytest.mark.parametrize(
    "environ",
    [
        {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"},
        {"PMI_SIZE": "1", "PMIX_RANK": "0"},
        {"PMI_SIZE": "two"},
        {"OMPI_COMM_WORLD_SIZE": "2", "RANK": "0", "WORLD_SIZE": "2"},
    ],
)
def test_a_single_copy_and_ranks_of_one_launch_go_on(environ: dict[str, str]) -> None:
    """Neither mpirun -np 1 nor ranks that mpirun gave RANK and WORLD_SIZE are two runs."""
    assert cluster_of(None, None, None, 1.0, environ) is None


def test_srun_may_set_variables_of_mpi() -> None:
    """With --mpi=pmi2 or pmix its tasks have them; one on each node are a cluster as before."""
    for variables in ({"PMI_SIZE": "2", "PMI_RANK": "1"}, {"PMIX_RANK": "1"}):
        found = cluster_of(None, None, None, 1.0, SLURM | variables)
        assert found is not None
        assert found.nodes == 2


def test_mpirun_may_start_one_on_each_node() -> None:
    """Told by --nnodes they are nodes of one run."""
    found = cluster_of(2, 0, f"{HERE}:1234", 1.0, {"OMPI_COMM_WORLD_SIZE": "2"})
    assert found is not None
    assert found.nodes == 2


def test_nodes_of_a_job_that_stay_unused_are_said(
    capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    """A batch script that calls spbench without srun runs on one node of its job's two."""
    batch = {"SLURM_JOB_NUM_NODES": "2", "SLURM_NODEID": "0"}
    assert cluster_of(None, None, None, 1.0, batch) is None
    golden(capsys.readouterr().err)
    one_task = {"SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_NUM_NODES": "1"}
    for quiet in ({"SLURM_JOB_NUM_NODES": "1"}, batch | one_task):
        assert cluster_of(None, None, None, 1.0, quiet) is None
    assert cluster_of(1, None, None, 1.0, batch) is None
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("environ", [{"OMPI_COMM_WORLD_SIZE": "2"}, SLURM])
def test_no_command_starts_ranks_as_one_of_several_copies(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, environ: dict[str, str], golden: Golden
) -> None:
    """Those without flags for nodes (check, verify, doctor) end with 2 before a rank starts."""
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(Failure) as caught:
        LocalLauncher(tmp_path / "launcher.log")
    golden(caught.value)
    assert caught.value.code == USAGE


def test_what_does_not_go_together(golden: Golden) -> None:
    """The message names the variable, its value, and what would work."""
    with pytest.raises(Failure) as refused:
        cluster_of(None, None, None, 1.0, SLURM | {"SLURM_STEP_NUM_TASKS": "8"})
    golden(refused.value)
    with pytest.raises(Failure, match="under torchrun"):
        cluster_of(2, 0, HERE, 1.0, {"RANK": "0", "WORLD_SIZE": "2"})
    with pytest.raises(Failure) as refused:
        cluster_of(2, 0, "192.0.2.1", 1.0, {})
    golden(refused.value, "second")
    with pytest.raises(Failure) as refused:
        cluster_of(3, None, "192.0.2.1", 1.0, {})
    golden(refused.value, "third")


def test_without_a_number_the_head_is_node_0_and_the_other_node_1() -> None:
    """With two nodes the numbers follow from who is at the endpoint."""
    first = cluster_of(2, None, socket.gethostname(), 1.0, {})
    second = cluster_of(2, None, "192.0.2.1:5", 1.0, {})
    assert first is not None and second is not None
    assert (first.node, first.port) == (0, 29400)
    assert (second.node, second.port) == (1, 5)
