"""Several nodes, as several commands on one machine: they meet, share ranks, notice a loss."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from helpers.command_line import spbench
from helpers.golden import HOST as HIDE_HOST
from helpers.golden import Golden
from helpers.spbench_process import (
    PATHS,
    ROOT,
    SMALL,
    alive,
    family,
    finish,
    listening,
    rows_of,
    start,
    until_ranks_step,
)

LONGER = pytest.mark.long
HOST = socket.gethostname()
PHASES = ("forward", "backward", "gradients")


HIDE = HIDE_HOST | {r"127\.0\.0\.1:\d+": "127.0.0.1:PORT", r"\b[0-9a-f]{12}\b": "DIGEST"}
"""For golden texts: what differs from run to run, and from machine to machine."""


def complaint(err: str) -> str:
    """What a run says of why it ended, without what it told on its way."""
    _, error, said = err.partition("Error: ")
    return error + said


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def node(folder: Path, rank: int, port: int, *words: str, nodes: int = 2, **more: str):
    """Starts one node, in a folder of its own."""
    place = folder / f"node{rank}"
    place.mkdir(exist_ok=True)
    where = ("--nnodes", str(nodes), "--node-rank", str(rank), "--rdzv-endpoint")
    return start(place, "run", *words, *where, f"127.0.0.1:{port}", "--out", "here", **more)


def test_a_case_on_two_nodes(tmp_path: Path) -> None:
    """One node is full before the next, ranks send what was predicted, and only node 0 writes."""
    port = free_port()
    words = (*SMALL, "-s", "dsp", "--gpus", "3")
    first, second = (node(tmp_path, i, port, *words) for i in (0, 1))
    code, _, err = finish(first)
    assert code == 0, err
    assert finish(second, 30)[0] == 0
    host = socket.gethostname()
    assert f"ranks: 3 on {host} 0-1, {host} 2" in err
    (row,) = rows_of(tmp_path / "node0" / "here")
    assert (row["status"], row["world_size"]) == ("ok", "3")
    assert row["placement"]
    assert sent(row) == [row[f"predicted_bytes_{phase}"] for phase in PHASES]
    assert not (tmp_path / "node1" / "here").exists()


@LONGER
def test_two_nodes_share_the_ranks_of_a_case(tmp_path: Path) -> None:
    """Ranks send as much as on one machine; one node is full before the next; only node 0 writes.

    The other does not touch its --out, where on a shared disk node 0 may have begun.
    """
    words = (*SMALL, "-s", "dsp,ulysses")
    other = tmp_path / "node1" / "here" / "notes"
    other.mkdir(parents=True)
    port = free_port()
    first, second = (node(tmp_path, i, port, *words, "--gpus", "2,3") for i in (0, 1))
    code, _, err = finish(first, 200)
    assert code == 0, err
    code_, _, err_ = finish(second, 30)
    assert code_ == 0, err_
    host = socket.gethostname()
    assert f"ranks: 3 on {host} 0-1, {host} 2" in err
    assert "node 0 is done" in err_
    assert [*other.parent.iterdir()] == [other]
    together = rows_of(tmp_path / "node0" / "here")
    assert [row["status"] for row in together] == ["ok"] * 4
    alone = start(tmp_path, "run", *words, "--gpus", "2,3", "--out", "alone")
    code, _, err = finish(alone, 200)
    assert code == 0, err
    volume = {
        (row["strategy"], row["world_size"]): sent(row) for row in rows_of(tmp_path / "alone")
    }
    for row in together:
        assert sent(row) == volume[row["strategy"], row["world_size"]]
        assert bool(row["placement"]) == (row["world_size"] != "2")


def sent(row: dict[str, str]) -> list[str]:
    return [row[f"sent_bytes_{phase}"] for phase in PHASES]


@LONGER
def test_a_fault_on_the_other_node(tmp_path: Path, golden: Golden) -> None:
    """The failure cause and the log come to node 0; the next launch uses both nodes."""
    words = (*SMALL, "-s", "dsp,ulysses", "--gpus", "3")
    port = free_port()
    first, second = (
        node(tmp_path, i, port, *words, SPBENCH_FAULT="raise@rank2:step3") for i in (0, 1)
    )
    code, _, err = finish(first, 120)
    assert code == 3, err
    assert finish(second, 30)[0] == 0
    rows = rows_of(tmp_path / "node0" / "here")
    assert {row["status"] for row in rows} == {"crash"}
    (reason,) = {row["reason"] for row in rows}
    golden(reason, hide=HIDE_HOST)
    log = tmp_path / "node0" / "here" / rows[0]["log"]
    assert "Traceback" in log.read_text()


@LONGER
@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_that_dies_in_the_end(tmp_path: Path, rank: int) -> None:
    """The rank is named soon, on either node; the next launch uses both."""
    words = (*SMALL, "-s", "dsp,ulysses", "--gpus", "3", "--hang-after", "60s")
    port = free_port()
    fault = f"kill@rank{rank}:teardown"
    first, second = (node(tmp_path, i, port, *words, SPBENCH_FAULT=fault) for i in (0, 1))
    code, _, err = finish(first, 120)
    assert code == 3, err
    assert finish(second, 30)[0] == 0
    said = f"rank {rank} ({socket.gethostname()}) was ended by SIGKILL"
    rows = rows_of(tmp_path / "node0" / "here")
    assert [(row["status"], row["reason"]) for row in rows] == [("crash", said)] * 2
    assert all(float(row["launch_s"]) < 45 for row in rows)


@LONGER
def test_two_machines_with_one_number(tmp_path: Path) -> None:
    """The second ends and names the host that has the number; the first goes on."""
    words = (*SMALL, "-s", "dsp", "--gpus", "2")
    port = free_port()
    runs = [node(tmp_path, i, port, *words, nodes=3) for i in (0, 1)]
    time.sleep(8)
    (tmp_path / "again").mkdir()
    code, _, err = finish(node(tmp_path / "again", 1, port, *words, nodes=3), 60)
    assert code == 6, err
    assert f"node 1 is {socket.gethostname()} already" in err
    runs.append(node(tmp_path, 2, port, *words, nodes=3))
    assert [finish(run, 120)[0] for run in runs] == [0, 0, 0]


@LONGER
def test_a_node_that_does_not_come(tmp_path: Path) -> None:
    """The run exits with 6 in time and names the node; only the launcher's log is written."""
    words = (*SMALL, "-s", "dsp", "--gpus", "4", "--join-timeout", "4s")
    port = free_port()
    runs = [node(tmp_path, i, port, *words, nodes=3) for i in (0, 2)]
    code, _, err = finish(runs[0], 60)
    assert code == 6, err
    assert "node 1 of 3 did not come within 4 s" in err
    code, _, err = finish(runs[1], 60)
    assert code == 6, err
    assert "node 1 of 3 did not come" in err
    assert not (tmp_path / "node0" / "here" / "runs.csv").exists()


@LONGER
def test_nobody_at_the_endpoint(tmp_path: Path) -> None:
    """A follower without node 0 ends with 6 and says where it looked."""
    port = free_port()
    run = node(tmp_path, 1, port, *SMALL, "-s", "dsp", "--gpus", "2", "--join-timeout", "2s")
    code, _, err = finish(run, 60)
    assert code == 6, err
    assert f"127.0.0.1:{port}" in err


@LONGER
def test_other_code_on_one_node(tmp_path: Path, golden: Golden) -> None:
    """Both end with 6; the message names the node and what differs."""
    shutil.copytree(ROOT / "spbench", tmp_path / "tree" / "spbench")
    shutil.copytree(ROOT / "configs", tmp_path / "tree" / "configs")
    (tmp_path / "tree" / "spbench" / "new.py").write_text('"""Another version."""\n')
    port = free_port()
    words = (*SMALL, "-s", "dsp", "--gpus", "2")
    first = node(tmp_path, 0, port, *words)
    second = node(tmp_path, 1, port, *words, PYTHONPATH=str(tmp_path / "tree"))
    for run in (first, second):
        code, _, err = finish(run, 60)
        assert code == 6, err
        golden(complaint(err), hide=HIDE)


@LONGER
def test_a_node_that_is_lost(tmp_path: Path) -> None:
    """A node that is stopped in mid-run, as if its machine had gone, is named in a row within the
    deadline; no other case begins, both exit with 6, and no process is left. Its ranks listen where
    the other node reaches them."""
    port = free_port()
    words = (*SMALL, "-s", "dsp", "--gpus", "3", "--launches", "60", "--hang-after", "10s")
    first, second = (node(tmp_path, i, port, *words) for i in (0, 1))
    until_ranks_step(tmp_path / "node0" / "here", first)
    there = family(second.pid)
    (launcher,) = psutil.Process(second.pid).children()
    sockets = [one for child in launcher.children(recursive=True) for one in listening(child)]
    assert sockets, "gloo of this node's rank listens for the others"
    assert {host for host, _ in sockets} == {"127.0.0.1"}
    for one in there:
        one.suspend()
    began = time.monotonic()
    code, _, err = finish(first, 60)
    assert time.monotonic() - began < 45
    assert code == 6, err
    *finished, row = rows_of(tmp_path / "node0" / "here")
    assert {one["status"] for one in finished} <= {"ok"}
    host = socket.gethostname()
    assert (row["status"], row["reason"]) == (
        "comm_error",
        f"node 1 ({host}) has not answered for 10 s",
    )
    for one in there:
        one.resume()
    code, _, err = finish(second, 60)
    assert code == 6, err
    assert alive(there) == []


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--nnodes", "2"], 2, "--nnodes 2 needs --rdzv-endpoint"),
        (["--node-rank", "1"], 2, "--node-rank 1 needs --nnodes"),
        (["--nnodes", "2", "--rdzv-endpoint", "a:b"], 2, "is not HOST or HOST:PORT"),
        (["--nnodes", "2", "--rdzv-endpoint", "a:99999"], 2, "there is no port 99999"),
        (
            ["--nnodes", "2", "--rdzv-endpoint", "no-such-host.invalid:1"],
            6,
            "'no-such-host.invalid', does not resolve",
        ),
        (["--nnodes", "2", "--node-rank", "2", "--rdzv-endpoint", "127.0.0.1"], 2, "use 0 to 1"),
        (["--nnodes", "2", "--share", "--rdzv-endpoint", "127.0.0.1"], 2, "--share is one process"),
    ],
)
def test_what_does_not_lead_anywhere(
    tmp_path: Path, words: list[str], code: int, said: str
) -> None:
    """The command refuses before anything starts, and never falls back to this machine alone."""
    done = spbench(tmp_path, "run", *SMALL, "-s", "dsp", *words, torch=True)
    assert done.code == code, done.err
    assert said in done.err
    assert not (tmp_path / "results").exists()


def torchrun(folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    return subprocess.run(
        [*launcher, "-m", "spbench", "run", *SMALL, "-s", "dsp,rsa", "--out", "here", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | {"PYTHONPATH": PATHS} | more,
    )


@LONGER
@pytest.mark.parametrize(
    ("fault", "status", "reason"),
    [
        ("raise@rank1:step3", "crash", "rank 1: RuntimeError: planted by SPBENCH_FAULT"),
        ("oom@rank1:step3", "oom", "rank 1: out of memory when it asked for 2.00 GiB"),
        ("raise@rank0:step3", "crash", "rank 0: RuntimeError: planted by SPBENCH_FAULT"),
        ("hang@rank1:step3", "comm_error", f"rank 1 ({HOST}) left no word: dead, hung or out of"),
        ("kill@rank1:step3", "comm_error", f"rank 1 ({HOST}) left no word: dead, hung or out of"),
    ],
)
def test_faults_of_ranks_that_torchrun_started(
    tmp_path: Path, fault: str, status: str, reason: str
) -> None:
    """Rank 0 writes the cause as far as it can, and why the other cases were skipped; torchrun's
    report has the first error."""
    done = torchrun(tmp_path, "--hang-after", "10s", SPBENCH_FAULT=fault)
    assert done.returncode != 0
    assert not fault.startswith("raise") or "RuntimeError: planted by SPBENCH_FAULT" in done.stderr
    first, second = rows_of(tmp_path / "here")
    assert first["status"] == status, first["reason"]
    assert first["reason"].startswith(reason)
    assert (second["status"], second["reason"]) == (
        "skipped",
        "an earlier case broke the process group that was joined",
    )


def ranks(folder: Path, *each: tuple[dict[str, str], list[str]]) -> list[tuple[int, str]]:
    """Exit code and stderr of ranks that are started by hand, with these variables and words."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{free_port()}"}
    words = (*SMALL, "--out", "here", "--hang-after", "8s")
    started = [
        start(folder, "run", *words, *more, **place | {"RANK": f"{rank}", "WORLD_SIZE": "2"} | own)
        for rank, (own, more) in enumerate(each)
    ]
    ends = [finish(rank, 60) for rank in started]
    assert not (folder / "here" / "runs.csv").exists()
    return [(code, err) for code, _, err in ends]


@LONGER
def test_ranks_that_do_not_find_each_other(tmp_path: Path, golden: Golden) -> None:
    """Exit 6 within --hang-after, naming who is missing, or what differs."""
    dsp = ["-s", "dsp"]
    ((code, err),) = ranks(tmp_path, ({}, dsp))
    assert code == 6, err
    golden(complaint(err), "one is missing", hide=HIDE)
    for code, err in ranks(tmp_path, ({}, dsp), ({}, ["-s", "rsa"])):
        assert code == 6, err
        golden(complaint(err), "other cases", hide=HIDE)
    for code, err in ranks(tmp_path, ({}, dsp), ({"WORLD_SIZE": "3"}, dsp)):
        assert code == 6, err
        golden(complaint(err), "another WORLD_SIZE", hide=HIDE)
    ((code, err),) = ranks(tmp_path, ({"MASTER_ADDR": ""}, dsp))
    assert code == 6, err
    golden(complaint(err), "no address", hide=HIDE)


@LONGER
def test_signals_to_one_node_end_it_alone_and_the_other_says_so(tmp_path: Path) -> None:
    """After Ctrl-C on node 0 node 1 ends by itself."""
    port = free_port()
    words = (*SMALL, "-s", "dsp", "--gpus", "3", "--launches", "60", "--hang-after", "10s")
    first, second = (node(tmp_path, i, port, *words) for i in (0, 1))
    until_ranks_step(tmp_path / "node0" / "here", first)
    there = family(second.pid)
    first.send_signal(signal.SIGINT)
    assert finish(first, 30)[0] == 130
    code, _, err = finish(second, 60)
    assert code == 6, err
    assert "node 0" in err
    assert alive(there) == []


@LONGER
def test_the_time_of_all_launches_under_torchrun(tmp_path: Path) -> None:
    """When rank 0 stops the others stop too, and torchrun reports no failure."""
    done = torchrun(tmp_path, "--max-time", "5s", "--launches", "40")
    rows = rows_of(tmp_path / "here")
    assert {row["status"] for row in rows} == {"ok"}
    assert 0 < len(rows) < 80
    assert "resume with: spbench resume here\n" in done.stderr
    assert "ChildFailedError" not in done.stderr or "exitcode  : 3" in done.stderr
