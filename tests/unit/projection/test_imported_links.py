"""Links by logs of nccl-tests: each run at the level that joins its ranks, the rest as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.golden import Golden
from helpers.nccl_logs import SIZES, TESTS, Seconds, at_rate, factor, text, write

from spbench.errors import Failure
from spbench.projection.costmodel.cluster_file import find
from spbench.projection.costmodel.hardware import Cluster, OnRanks
from spbench.projection.costmodel.message_cost import message_cost
from spbench.projection.dryrun.work import Message
from spbench.projection.microbench.imported_links import Imported, said, with_logs
from spbench.projection.microbench.nccl_logs import NAMES
from spbench.workload.mesh import Mesh
from spbench.workload.traffic import Op

H100, L20 = find("hgx-h100"), find("l20-pcie")
TWO_HOSTS = ("node-a", "node-b")


def seconds_of(cluster: Cluster, op: Op, sent: float, ranks: int = 8) -> float:
    """What the cost model has for one collective over all ranks."""
    message = Message(op=op, phase="forward", axis="s", sent_bytes=round(sent))
    return message_cost(message, Mesh((("s", ranks),)), cluster, ["s"]).seconds


def as_modelled(cluster: Cluster, test: str, ranks: int, slower: float = 1.0) -> Seconds:
    """Times that the cluster itself has, or at a part of its rates."""
    op = NAMES[test]
    return lambda sent: seconds_of(cluster, op, sent * slower, ranks)


def imported(folder: Path, onto: Cluster, *runs: str) -> Imported:
    return with_logs("ours", onto, [write(folder, "runs.log", *runs)])


@pytest.mark.parametrize("test", TESTS)
@pytest.mark.parametrize(("ranks", "level"), [(4, "socket"), (8, "node")])
def test_a_run_goes_to_the_level_that_joins_its_ranks(
    tmp_path: Path, test: str, ranks: int, level: str
) -> None:
    """Eight ranks of two sockets meet in the node; they went to the socket, which has four."""
    made = imported(tmp_path, L20, text(test, ranks, at_rate(5.0, 50.0))).cluster
    op = NAMES[test]
    for old, new in zip(L20.levels, made.levels, strict=True):
        assert (old.collectives[op] != new.collectives[op]) == (new.name == level)
    for sent in (10**4, 10**7, 10**9):
        assert seconds_of(made, op, sent, ranks) == pytest.approx(50e-6 + sent / 5e9, rel=0.06)
    assert made.device == L20.device


def test_ranks_of_two_sockets_meet_in_the_node(tmp_path: Path) -> None:
    """Two devices that are not of one socket: what they send crosses between the sockets."""
    made = imported(tmp_path, L20, text("alltoall", 2, at_rate(3.0, 50.0), devices=(0, 4)))
    assert [each.at for each in made.by_level[1]["all_to_all"].runs] == [1]
    assert made.cluster.levels[0] == L20.levels[0]
    assert made.cluster.levels[1].collectives["all_to_all"].gb_per_s(500.0) == pytest.approx(3.0)


@pytest.mark.parametrize("ranks", [4, 8])
@pytest.mark.parametrize("sizes", [SIZES, tuple(2**n for n in range(3, 28))])
def test_a_cluster_s_own_times_give_it_again(
    tmp_path: Path, ranks: int, sizes: tuple[int, ...]
) -> None:
    """Within 5 %, between the sizes that were timed as at them."""
    runs = [text(test, ranks, as_modelled(L20, test, ranks), sizes=sizes) for test in TESTS]
    made = imported(tmp_path, L20, *runs).cluster
    for op in NAMES.values():
        for sent in (2**11, 3 * 10**5, 10**7, 10**8):
            was, now = (seconds_of(each, op, sent, ranks) for each in (L20, made))
            assert now == pytest.approx(was, rel=0.05), (op, sent)


@pytest.mark.parametrize(
    ("onto", "test"), [(H100, "all_gather"), (L20, "alltoall"), (L20, "sendrecv")]
)
def test_a_large_message_is_no_latency(
    tmp_path: Path, onto: Cluster, test: str, golden: Golden
) -> None:
    """The default of nccl-tests, one size of 32 MiB: its time was all latency, at any rate."""
    op = NAMES[test]
    run = text(test, 8, as_modelled(onto, test, 8), sizes=(2**25,))
    made = imported(tmp_path, onto, run)
    (fits,) = made.by_level.values()
    assert not fits[op].is_latency_told
    for size in (2**12, 2**25, 2**32):
        sent = size * factor(test, 8)
        was, now = (seconds_of(each, op, sent) for each in (onto, made.cluster))
        assert now == pytest.approx(was, rel=0.15), size
    (line, *_) = said(made)
    golden(line)
    assert f"latency of {op}" in [*said(made)][-1]


def test_small_messages_alone_tell_no_rate(tmp_path: Path, golden: Golden) -> None:
    with pytest.raises(Failure) as refused:
        imported(tmp_path, H100, text("all_gather", sizes=(8, 64, 512, 4096)))
    golden(refused.value)


def test_a_message_faster_than_the_latency_that_is_assumed_is_refused(
    tmp_path: Path, golden: Golden
) -> None:
    """It is too large to tell another, and rates beside the old one would be of nothing."""
    run = text("all_gather", 8, at_rate(300.0, 1.0), sizes=(2**20, 2**24))
    with pytest.raises(Failure) as refused:
        imported(tmp_path, H100, run)
    golden(refused.value)


def test_links_of_several_hosts_are_between_them(tmp_path: Path) -> None:
    """Of an all-to-all what stays in a node does not cross; nodes share at least what was seen."""
    runs = [
        text(test, 16, at_rate(400.0, 40.0), hosts=TWO_HOSTS) for test in ("alltoall", "all_gather")
    ]
    made = imported(tmp_path, H100, *runs).cluster
    network = made.levels[1]
    for op, share in (("all_to_all", 8 / 15), ("all_gather", 1.0)):
        rate = network.collectives[op].gb_per_s(500.0)  # type: ignore[index]
        assert rate == pytest.approx(400.0 * share, rel=0.01)
    assert network.shared_gb_per_s is not None
    assert network.shared_gb_per_s.value == pytest.approx(8 * 400.0 * 8 / 15, rel=0.01)


def test_logs_of_several_levels_come_in_together(tmp_path: Path) -> None:
    within = text("alltoall", 8, at_rate(200.0, 20.0))
    made = imported(
        tmp_path, H100, within, text("alltoall", 16, at_rate(30.0, 40.0), hosts=TWO_HOSTS)
    )
    inner, outer = (
        level.collectives["all_to_all"].gb_per_s(500.0) for level in made.cluster.levels
    )
    assert (inner, outer) == (pytest.approx(200.0, rel=0.01), pytest.approx(16.0, rel=0.01))


def test_an_inner_level_carries_at_least_what_goes_over_it(tmp_path: Path, golden: Golden) -> None:
    """Else a machine that is faster than was assumed would be held back by a link in its midst."""
    made = imported(tmp_path, L20, text("all_gather", 8, at_rate(40.0, 27.0)))
    assert seconds_of(made.cluster, "all_gather", 10**9) == pytest.approx(0.025, rel=0.05)
    socket, node = made.cluster.levels
    assert socket.collectives["all_gather"].gb_per_s(1e3) == pytest.approx(40.0, rel=0.05)
    assert socket.collectives["all_gather"].gb_per_s.kind == "inferred"
    assert node.shared_gb_per_s is not None
    assert node.shared_gb_per_s.value == pytest.approx(40.0, rel=0.01)
    golden("\n".join(said(made)))


def test_a_network_joins_nodes_that_were_calibrated_alone(tmp_path: Path, golden: Golden) -> None:
    """A node of 8 ranks gets a level around it by logs of two such nodes, one of each operation."""
    node = H100.model_copy(update={"levels": H100.levels[:1], "name": "here", "drawn_together": ()})
    runs = [text(test, 16, at_rate(40.0, 30.0), hosts=TWO_HOSTS) for test in TESTS]
    made = imported(tmp_path, node, *runs).cluster
    assert (node.most_ranks, made.most_ranks) == (8, None)
    assert made.levels[0] == node.levels[0]
    rates = made.levels[1].collectives
    assert rates["all_to_all"].gb_per_s(500.0) == pytest.approx(40.0 * 8 / 15, rel=0.01)
    with pytest.raises(Failure) as refused:
        imported(tmp_path, node, *runs[:2])
    golden(refused.value)
    large = [text(test, 16, hosts=TWO_HOSTS, sizes=(2**25,)) for test in TESTS]
    with pytest.raises(Failure) as refused:
        imported(tmp_path, node, *large)
    golden(refused.value, "second")


REFUSED: dict[str, tuple[Cluster, str]] = {
    r"runs.log:1: 8, 4 ranks on 2 hosts|4, 4 ranks on 2 hosts, and a host of hgx-h100 has 8": (
        H100,
        text("alltoall", 8, hosts=TWO_HOSTS),
    ),
    r"runs.log:1: 16 ranks on host 'node-a', and a host of hgx-h100 has 8 ranks": (
        H100,
        text("alltoall", 16),
    ),
    r"runs.log:1: 8 ranks on host 'node-a', and a host of piz-daint has 1 rank": (
        find("piz-daint"),
        text("alltoall", 8),
    ),
    r"runs.log:1: its ranks are dealt out over hosts in turn": (
        H100,
        text("alltoall", 16, hosts=TWO_HOSTS * 8, devices=[n // 2 for n in range(16)]),
    ),
    r"runs.log:1: a rank on device 9, and a host of hgx-h100 has 8 ranks, from 0 on": (
        H100,
        text("alltoall", 2, devices=(0, 9)),
    ),
    r"runs.log:1: 2 ranks on one host, and level 'network' of here joins hosts": (
        H100.model_copy(
            update={
                "name": "here",
                "link": "network",
                "nodes": 2,
                "levels": (H100.levels[1].model_copy(update={"ranks": 4}),),
            }
        ),
        text("alltoall", 2),
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_a_level_cannot_know_is_refused(tmp_path: Path, message: str) -> None:
    onto, run = REFUSED[message]
    with pytest.raises(Failure, match=message):
        imported(tmp_path, onto, run)


def test_hosts_inside_one_domain_of_links_are_of_its_level(tmp_path: Path) -> None:
    """A tray of an NVL72 has four GPUs, and its NVLink joins eighteen of them."""
    run = text("alltoall", 8, at_rate(500.0, 20.0), hosts=TWO_HOSTS)
    made = imported(tmp_path, find("nvl72-gb200"), run)
    assert [*made.by_level] == [0]


def test_several_numbers_of_ranks_all_count(tmp_path: Path) -> None:
    """Each further rank adds 2 us; only the fewest and the most did count."""
    runs = [text("all_gather", n, at_rate(300.0, 10.0 + 2 * n)) for n in (2, 4, 8)]
    rate = imported(tmp_path, H100, *runs).cluster.levels[0].collectives["all_gather"]
    assert rate.hop_us is not None and rate.hop_us.value == pytest.approx(2.0, rel=0.02)
    assert rate.latency_us.value == pytest.approx(14.0, rel=0.02)
    same = [text("all_gather", n, at_rate(300.0, 20.0)) for n in (2, 8)]
    assert (
        imported(tmp_path, H100, *same).cluster.levels[0].collectives["all_gather"].hop_us is None
    )


def test_runs_that_nearly_agree_are_one_rate_with_their_spread(tmp_path: Path) -> None:
    runs = [text("alltoall", 8, at_rate(rate, 20.0)) for rate in (300.0, 240.0)]
    alone = imported(tmp_path, H100, runs[0]).cluster.levels[0].collectives["all_to_all"].gb_per_s
    both = imported(tmp_path, H100, *runs).cluster.levels[0].collectives["all_to_all"].gb_per_s
    assert both(500.0) == pytest.approx((300.0 * 240.0) ** 0.5, rel=0.02)
    assert both.factor > 1.2 > alone.factor


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        (
            [text("alltoall", 16, at_rate(r, 40.0), hosts=TWO_HOSTS) for r in (41.0, 21.0, 36.0)],
            r"40.9 GB/s on 16 ranks \(.*runs.log:1\), 21 GB/s on .* cannot know which",
        ),
        (
            [
                text("all_gather", n, at_rate(r, 30.0), hosts=[f"n{i}" for i in range(n // 8)])
                for n, r in ((64, 45.0), (128, 20.0))
            ],
            r"44.9 GB/s on 64 ranks .* and 20 GB/s on 128 ranks .* one rate of all_gather",
        ),
    ],
    ids=["settings", "numbers of ranks"],
)
def test_runs_that_differ_are_not_one_rate(tmp_path: Path, runs: list[str], message: str) -> None:
    with pytest.raises(Failure, match=message):
        imported(tmp_path, H100, *runs)


def test_logs_go_before_what_calibration_timed_with_fewer_ranks(
    tmp_path: Path, golden: Golden
) -> None:
    """Fewer ranks keep their device, and the operations that have no log."""
    own = OnRanks(ranks=4, device=H100.device, levels=H100.levels[:1])
    alone = OnRanks(ranks=1, device=H100.device)
    onto = H100.model_copy(
        update={"on_ranks": (alone, own), "sources": H100.sources | {"calibrate": "times of it"}}
    )
    made = imported(tmp_path, onto, text("alltoall")).cluster
    (level,) = made.used_by(4).levels
    assert level.collectives["all_to_all"] == made.levels[0].collectives["all_to_all"]
    assert level.collectives["all_to_all"] != H100.levels[0].collectives["all_to_all"]
    assert level.collectives["all_gather"] == H100.levels[0].collectives["all_gather"]
    assert made.on_ranks[0] == alone
    assert made.sources["calibrate"] == "times of it"
    golden(made.sources["nccl-tests"])


def test_what_was_timed_is_drawn_by_itself_and_the_rest_as_before(tmp_path: Path) -> None:
    """What a log told is no figure that stands for several, and the machine is the same."""
    made = imported(tmp_path, L20, text("all_gather", 8, at_rate(10.0, 27.0))).cluster
    assert made.drawn_as == "l20-pcie"
    groups = [group for group in made.drawn_together if group.holds("node.all_gather.gb_per_s")]
    assert groups == []
    assert sum(group.holds("socket.all_gather.gb_per_s") for group in made.drawn_together) == 2


def test_the_answer_says_what_was_replaced_and_what_stays_assumed(
    tmp_path: Path, golden: Golden
) -> None:
    runs = [text(test, 8, at_rate(10.0, 30.0)) for test in TESTS[:-1]]
    lines = [*said(imported(tmp_path, L20, *runs))]
    golden("\n".join(lines))


def test_what_calibration_timed_is_not_called_assumed(tmp_path: Path) -> None:
    data: dict[str, Any] = H100.model_dump()
    for part in (data["device"]["memory_gb_per_s"], data["call_us"]):
        part["source"] = "calibrate"
    last = [*said(imported(tmp_path, Cluster.model_validate(data), text("alltoall")))][-1]
    assert "device" not in last and "host's time" not in last
