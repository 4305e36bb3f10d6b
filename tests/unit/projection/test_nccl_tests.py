"""Logs of nccl-tests: what a rank sends and how long it takes, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from spbench.errors import Failure
from spbench.projection.hardware import OnRanks, find
from spbench.projection.link_fit import with_logs
from spbench.projection.nccl_tests import read_log

HEAD = """# nThread 1 nGpus 1 minBytes 1024 maxBytes 1073741824 step: 32(factor) warmup iters: 5
#
# Using devices
{ranks}
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""  # noqa: E501
TAIL = """# Out of bounds values : 0 OK
# Avg bus bandwidth    : 100.0
#
"""
RANK = "#  Rank {0:2} Group  0 Pid  42{0} on      node{1} device {2:2} [0x1b] NVIDIA H100 80GB HBM3"
LATENCY_US, BUSBW = 20.0, 400.0
SIZES = (0, 1024, 2**15, 2**20, 2**25, 2**30)
FACTORS = {"all_reduce": 2.0, "sendrecv": None}


def factor(test: str, ranks: int) -> float:
    return 1.0 if test == "sendrecv" else FACTORS.get(test, 1.0) * (ranks - 1) / ranks  # type: ignore[operator]


def log(
    folder: Path,
    test: str,
    ranks: int = 8,
    hosts: int = 1,
    wrong: str = "0",
    sizes: Sequence[int] = SIZES,
    name: str = "",
) -> Path:
    """What a test prints where a rank sends at BUSBW, after a latency."""
    per_host = ranks // hosts
    places = [RANK.format(rank, rank // per_host, rank % per_host) for rank in range(ranks)]
    lines = [HEAD.format(ranks="\n".join(places))]
    for size in sizes:
        us = LATENCY_US + size * factor(test, ranks) / BUSBW / 1e3
        algbw = size / us / 1e3
        times = f"{us:8.2f} {algbw:7.2f} {algbw * factor(test, ranks):7.2f} {wrong:>6}"
        redop = "sum" if "reduce" in test else "none"
        lines.append(f"{size:12} {size // 4:13} {'float':>9} {redop:>7} {-1:7} {times} {times}\n")
    path = folder / (name or f"{test}_perf.{ranks}.log")
    path.write_text("".join(lines) + TAIL, encoding="utf-8")
    return path


@pytest.mark.parametrize("test", ["all_reduce", "all_gather", "reduce_scatter", "alltoall"])
def test_a_rank_sends_its_part_of_a_buffer(tmp_path: Path, test: str) -> None:
    """busbw is what a rank sends over the time; a line without bytes does not count."""
    found = read_log(log(tmp_path, test))
    assert (found.ranks, found.hosts) == (8, 1)
    sent, seconds = found.points[-1]
    assert len(found.points) == len(SIZES) - 1
    assert sent == 2**30 * (2 if test == "all_reduce" else 1) * 7 / 8
    assert sent / (seconds - LATENCY_US / 1e6) / 1e9 == pytest.approx(BUSBW, rel=1e-3)


def test_links_of_one_host_are_the_innermost_level(tmp_path: Path) -> None:
    onto = find("hgx-h100")
    files = [log(tmp_path, "alltoall"), log(tmp_path, "sendrecv")]
    made = with_logs("ours", onto, files, None)
    rates = made.levels[0].collectives
    for op in ("all_to_all", "p2p"):
        old = onto.levels[0].collectives[op]
        assert rates[op].gb_per_s(100.0) == pytest.approx(BUSBW, rel=0.01)
        assert old.hop_us is not None
        whole_us = rates[op].latency_us.value + 6 * old.hop_us.value
        assert whole_us == pytest.approx(LATENCY_US, rel=0.01)
    assert rates["all_gather"] == onto.levels[0].collectives["all_gather"]
    assert made.levels[1] == onto.levels[1]
    assert made.device == onto.device
    assert "alltoall_perf.8.log" in made.sources["calibrate"]


def test_logs_go_before_what_calibration_timed_with_fewer_ranks(tmp_path: Path) -> None:
    """Fewer ranks keep their device, and the operations that have no log."""
    plain = find("hgx-h100")
    own = OnRanks(ranks=4, device=plain.device, levels=plain.levels[:1])
    alone = OnRanks(ranks=1, device=plain.device)
    onto = plain.model_copy(update={"on_ranks": (alone, own)})
    made = with_logs("ours", onto, [log(tmp_path, "alltoall")], None)
    (level,) = made.used_by(4).levels
    assert level.collectives["all_to_all"] == made.levels[0].collectives["all_to_all"]
    assert level.collectives["all_to_all"] != plain.levels[0].collectives["all_to_all"]
    assert level.collectives["all_gather"] == plain.levels[0].collectives["all_gather"]
    assert made.on_ranks[0] == alone


def test_links_of_several_hosts_are_the_outermost_level(tmp_path: Path) -> None:
    """Of an all-to-all what stays in a node does not cross; nodes share at least what was seen."""
    files = [log(tmp_path, test, ranks=16, hosts=2) for test in ("alltoall", "all_gather")]
    made = with_logs("ours", find("hgx-h100"), files, None)
    network = made.levels[1]
    assert network.collectives["all_to_all"].gb_per_s(500.0) == pytest.approx(
        BUSBW * 8 / 15, rel=0.01
    )
    assert network.collectives["all_gather"].gb_per_s(500.0) == pytest.approx(BUSBW, rel=0.01)
    assert network.shared_gb_per_s is not None
    assert network.shared_gb_per_s.value == pytest.approx(8 * BUSBW * 8 / 15, rel=0.01)


def test_a_network_joins_nodes_that_were_calibrated_alone(tmp_path: Path) -> None:
    """A node of 8 ranks gets a level around it by logs of two such nodes, one of each operation."""
    onto = find("hgx-h100")
    node = onto.model_copy(update={"levels": onto.levels[:1], "name": "here"})
    tests = ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "sendrecv")
    files = [log(tmp_path, test, ranks=16, hosts=2) for test in tests]
    made = with_logs("ours", node, files, None)
    assert (node.most_ranks, made.most_ranks) == (8, None)
    assert made.levels[0] == node.levels[0]
    rates = made.levels[1].collectives
    assert rates["all_to_all"].gb_per_s(500.0) == pytest.approx(BUSBW * 8 / 15, rel=0.01)
    with pytest.raises(Failure, match=r"takes a log of reduce_scatter, alltoall, sendrecv, too"):
        with_logs("ours", node, files[:2], None)
    small = [log(tmp_path, test, ranks=16, hosts=4) for test in tests]
    with pytest.raises(Failure, match=r"here joins 8 ranks; a network .* logs of 8 ranks a host"):
        with_logs("ours", node, small, None)


def test_two_numbers_of_ranks_give_the_time_of_a_further_one(tmp_path: Path) -> None:
    files = [log(tmp_path, "all_gather", ranks=ranks) for ranks in (2, 8)]
    rate = with_logs("ours", find("hgx-h100"), files, None).levels[0].collectives["all_gather"]
    assert rate.hop_us is None  # both take as long
    assert rate.latency_us.value == pytest.approx(LATENCY_US, rel=0.01)


def test_what_is_not_such_a_log_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("hello\n", encoding="utf-8")
    onto = find("hgx-h100")
    refused = {
        "is not output of nccl-tests": other,
        "cannot read": tmp_path / "none.log",
        "lists 1 ranks": log(tmp_path, "all_reduce", ranks=1),
        "#wrong is 3": log(tmp_path, "all_reduce", wrong="3"),
        "holds no times": log(tmp_path, "alltoall", sizes=()),
        "which test is it": log(tmp_path, "alltoall", name="nccl.log"),
        "busbw is 1.75 times algbw": log(tmp_path, "all_reduce", name="all_gather.log"),
    }
    for message, path in refused.items():
        with pytest.raises(Failure, match=message):
            with_logs("ours", onto, [path], None)
    ours = log(tmp_path, "sendrecv")
    with pytest.raises(Failure, match="--level rack: hgx-h100 has nvlink, network"):
        with_logs("ours", onto, [ours], "rack")
    with pytest.raises(Failure, match="is of 8 ranks, which level 'nvlink' joins"):
        with_logs("ours", onto, [ours], "network")
    with pytest.raises(Failure, match="some logs are of one host"):
        with_logs("ours", onto, [ours, log(tmp_path, "alltoall", ranks=16, hosts=2)], None)


def test_the_test_s_own_line_goes_before_the_file_s_name(tmp_path: Path) -> None:
    path = log(tmp_path, "alltoall", name="today.log")
    text = path.read_text(encoding="utf-8")
    path.write_text(f"# Collective test starting: alltoall_perf\n{text}", encoding="utf-8")
    assert read_log(path).op == "all_to_all"
