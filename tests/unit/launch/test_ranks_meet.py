"""Where ranks of one machine meet, and what keeps them from it."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.golden import Golden

from spbench.errors import UNFIT, Failure
from spbench.launch import interfaces
from spbench.launch.cluster import Cluster
from spbench.launch.interfaces import MOST_BYTES, loopback_interface
from spbench.launch.launcher import LauncherError, LaunchResult
from spbench.launch.local import LocalLauncher
from spbench.launch.nodes import FILES, _Launch
from spbench.launch.ranks import NodeRanks
from spbench.launch.torchrun import JoinedLauncher
from spbench.results.variables import compared
from spbench.sweep.run import follow
from spbench.worker.rank_process import MEETING
from spbench.workload.case import Job


def why_refused(folder: Path) -> str:
    """What a launch says that cannot begin; it starts no process."""
    launcher = LocalLauncher(folder / "launcher.log")
    with pytest.raises(LauncherError) as refused:
        launcher.run(Job(ranks=2, device="cpu"), folder)
    assert refused.value.code == UNFIT
    assert [*folder.iterdir()] == []
    return str(refused.value)


def test_loopback_that_is_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setattr(interfaces, "address_towards", lambda *_: None)
    golden(why_refused(tmp_path))


@pytest.mark.parametrize("chosen", ["^lo,docker0", "=lo", "lo,nowhere0", "l"])
def test_an_interface_that_gloo_does_not_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen: str, golden: Golden
) -> None:
    """NCCL's forms of a name are no names for gloo: the variable is named before the first launch,
    on a node that follows and under torchrun, too."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", chosen)
    said = f"GLOO_SOCKET_IFNAME={chosen}, but there is no interface "
    assert said in why_refused(tmp_path)
    cluster = Cluster(nodes=2, node=0, head="127.0.0.1", port=1)
    head = LocalLauncher(tmp_path / "launcher.log", cluster=cluster)
    with pytest.raises(LauncherError) as caught:
        head.meet(2, on_gpus=False)
    golden(caught.value, hide={r"one of lo, [^:]*": "one of lo, ..."})
    assert caught.value.code == UNFIT
    with pytest.raises(LauncherError, match=re.escape(said)):
        follow(cluster.model_copy(update={"node": 1}), "cpu")
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(Failure, match=re.escape(f"rank 1: {said}")) as joining:
        JoinedLauncher(Job(ranks=2, device="cpu"))
    assert joining.value.code == UNFIT
    assert interfaces.why_ranks_cannot_meet("cuda", is_alone=True) is None


@pytest.mark.parametrize("chosen", ["lo", "lo,lo"])
def test_interfaces_that_are_there(monkeypatch: pytest.MonkeyPatch, chosen: str) -> None:
    """A name, or several, keep nobody from meeting."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", chosen)
    assert interfaces.why_ranks_cannot_meet("cpu", is_alone=True) is None


def test_a_temporary_folder_too_long_for_sockets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/" + "t" * MOST_BYTES)
    said = why_refused(tmp_path)
    golden(said)
    assert "TMPDIR" in said


@pytest.mark.parametrize("chosen", ["", "eth0"])
def test_ranks_of_one_machine_have_no_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen: str
) -> None:
    """They have a file and the loopback interface, unless the user has chosen another."""
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.setenv(name, chosen) if chosen else monkeypatch.delenv(name, raising=False)
    lo = loopback_interface()
    here = NodeRanks(0, [2], tmp_path / "meeting", lo).environment(1, "cuda")
    assert here[MEETING] == str(tmp_path / "meeting") and "MASTER_ADDR" not in here
    assert here.get("GLOO_SOCKET_IFNAME") == (None if chosen else lo)
    assert here.get("NCCL_SOCKET_IFNAME") == (None if chosen else f"={lo}")
    there = NodeRanks(0, [1, 1], ("node-a", 29500), "eth1").environment(0, "cuda")
    assert (there["MASTER_ADDR"], MEETING in there, "NCCL_SOCKET_IFNAME" in there) == (
        *("node-a", False, False),
    )


def test_the_interface_of_one_machine_is_no_other_setting() -> None:
    """Rows of ranks that met elsewhere, before, are compared with today's."""
    assert compared("NCCL_SOCKET_IFNAME==lo", "") == "none"
    assert compared("NCCL_SOCKET_IFNAME=eth0", "") == "NCCL_SOCKET_IFNAME=eth0"


OTHER_FILES = ["../x", "/x", "rank0.json/../../x", "logs/others/x", "run.json"]


@pytest.mark.parametrize("name", OTHER_FILES)
def test_no_other_file_comes_from_another_node(name: str) -> None:
    assert FILES.fullmatch(name) is None
    assert FILES.fullmatch("rank10.pulse") and FILES.fullmatch("logs/others/attempt_0/3/stderr.log")


def test_what_another_node_posts_is_written_by_name(tmp_path: Path) -> None:
    """Whoever reaches the store may post anything: only files of ranks are written."""
    files = {"rank1.json": "mine", "run.json": "not mine", "../x": "nor this"}
    done = {"ended": LaunchResult(ok=True).model_dump(mode="json"), "files": files}
    launch = object.__new__(_Launch)
    store = SimpleNamespace(read=lambda _: json.dumps(done))
    folder = tmp_path / "launch"
    vars(launch).update(_beats={1: ("", 0.0)}, _store=store, _number=0, _folder=folder)
    assert launch._gather(LaunchResult(ok=True)).ok
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["rank1.json"]
