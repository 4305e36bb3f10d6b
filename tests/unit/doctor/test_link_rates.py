"""Which transfers are timed, and how the times of all ranks become a table of rates."""

from __future__ import annotations

import io
from itertools import pairwise
from typing import Any

import pytest

from spbench.doctor.link_rates import LinkCheck, report_of
from spbench.errors import USAGE, Failure
from spbench.launch.launcher import LaunchResult
from spbench.report import doctor_table, tables
from spbench.results.link_report import LinkReport, LinkTimes, LinkTiming
from spbench.strategies.registry import places
from spbench.workload.catalogue import find

SMALL = find("open-sora-1.2-480p-small")
NODES = {0: "node0", 1: "node1"}


def check(**more: Any) -> LinkCheck:
    known: dict[str, Any] = {"workload": SMALL, "strategies": [*places()], "ranks": 2}
    return LinkCheck(**known | {"device": "cpu", "timeout_s": 60.0} | more)


def times(check: LinkCheck, rank: int, ms: float, **more: Any) -> LinkTimes:
    """Each transfer sends a megabyte, in ``ms`` and in some more."""
    timing = LinkTiming(sent_bytes=1e6, ms=[ms, 1.5 * ms, ms])
    known: dict[str, Any] = {"rank": rank, "host": f"node{rank}", "backend": "gloo"}
    known |= {"hardware": "a cpu x2", "link": "eth0", "nominal_bytes_per_s": None}
    return LinkTimes(timings=[timing] * len(check.timed()), **known | more)


def test_sizes_are_the_strategies() -> None:
    """A row for each operation and size; a weight that is not cut adds little to a sum."""
    rows = [(of.op, of.gradients, of.elements, users) for of, users in check().timed()]
    assert rows[:3] == [
        ("all_to_all", False, [274752, 274752], ["ulysses"]),
        ("all_to_all", False, [91584, 91584], ["dsp", "ulysses"]),
        ("all_gather", False, [366336, 366336], ["kv-gather"]),
    ]
    summed = ["dsp", "ulysses", "rsa", "ring", "kv-gather", "attention-2d", "usp"]
    assert ("all_gather", False, [183168, 183168], ["megatron-sp"]) in rows
    assert ("all_reduce", True, [2822120], summed) in rows
    assert ("all_reduce", False, [366336], ["megatron-tp", "rsa"]) in rows
    assert ("all_reduce", True, [96], ["megatron-tp"]) in rows  # norms that heads share
    assert len(rows) == 12


def test_sizes_that_are_nearly_equal_are_one_row() -> None:
    """On four ranks uneven shards give four sizes of all-to-all that differ by a tenth or more."""
    sizes = [max(of.elements) for of, _ in check(ranks=4).timed() if of.op == "all_to_all"]
    assert sizes == sorted(sizes, reverse=True)
    assert all(larger > 1.1 * smaller for larger, smaller in pairwise(sizes))
    assert len(sizes) == 4


def test_large_tensors_are_timed_smaller() -> None:
    """256 MiB of a tensor are enough to know its rate; gradients leave in buckets of 25."""
    for timed, _ in check(workload=find("dsp-720m")).timed():
        most = 25 * 2**20 if timed.gradients else 256 * 2**20
        assert sum(timed.elements) * 2 <= most + 2  # bfloat16


def test_what_cannot_be_timed_is_refused() -> None:
    """One rank sends nothing, and a strategy that cannot run has no sizes: exit 2, and why."""
    with pytest.raises(Failure, match="a single rank has no other to send to") as caught:
        check(ranks=1).job()
    assert caught.value.code == USAGE
    with pytest.raises(Failure, match=r"no strategy can run .* on 32 ranks; ulysses: 16 heads"):
        check(ranks=32, strategies=["ulysses"]).job()


def test_a_row_has_the_slowest_rank_and_the_median() -> None:
    """Time: the slowest rank's in each repeat. Rate: the median over ranks, and the slowest's."""
    one = check()
    report = report_of(
        one, LaunchResult(ok=True, hosts=NODES), [times(one, 0, 8), times(one, 1, 10)]
    )
    row = report.rows[0]
    assert (row.ms, row.ms_low, row.ms_high, row.repeats) == (10.0, 10.0, 15.0, 3)
    assert (row.slowest_rank, row.slowest_bytes_per_s) == (1, pytest.approx(0.1e9))
    assert row.bytes_per_s == pytest.approx((0.1e9 + 0.125e9) / 2)
    assert (row.share_of_nominal, report.nominal_bytes_per_s) == (None, None)
    assert (report.placement, report.link) == ("node0 0, node1 1", "eth0")


@pytest.mark.parametrize(
    ("device", "hosts", "nominal", "share"),
    [
        ("cpu", NODES, 0.5e9, 0.2),
        ("cpu", NODES, None, None),
        ("cpu", {}, 0.5e9, None),  # one machine: nothing passes by its interface
        ("cpu", {0: "node0", 1: "node0"}, 0.5e9, None),  # two ranks share a link
        ("cuda", {}, 0.5e9, 0.2),
        ("cuda", NODES, 0.5e9, None),  # NVLink ends at the machine
    ],
)
def test_the_share_of_a_nominal_rate(
    device: Any, hosts: dict[int, str], nominal: float | None, share: float | None
) -> None:
    """Only where each rank has a link of its own, and its rate is known."""
    one = check(device=device)
    of_ranks = [times(one, rank, 10, nominal_bytes_per_s=nominal) for rank in (0, 1)]
    report = report_of(one, LaunchResult(ok=True, hosts=hosts), of_ranks)
    assert report.rows[0].share_of_nominal == (None if share is None else pytest.approx(share))


def shown(monkeypatch: pytest.MonkeyPatch, report: LinkReport) -> list[str]:
    stream = io.StringIO()
    monkeypatch.setattr(
        doctor_table.tables, "console", lambda: tables.Output(file=stream, width=200)
    )
    doctor_table.show_links(report)
    return stream.getvalue().splitlines()


def test_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line for each row, and below it where it was measured and the nominal rate."""
    one = check()
    launched = LaunchResult(ok=True, hosts=NODES)
    lines = shown(monkeypatch, report_of(one, launched, [times(one, 0, 10), times(one, 1, 10)]))
    heads = "operation sent MiB ms range times GB/s slowest rank of nominal strategies"
    cells = "all_to_all 0.954 10 10..15 3 0.1 0.1 (rank 0) unknown ulysses"
    assert (lines[1].split(), lines[3].split()) == (heads.split(), cells.split())
    assert lines[-2].startswith("2 ranks over gloo on node0 0, node1 1; sizes of open-sora-1.2")
    assert lines[-1] == "Nominal rate of eth0: unknown."
    known = [times(one, rank, 10, nominal_bytes_per_s=1.25e9) for rank in (0, 1)]
    lines = shown(monkeypatch, report_of(one, launched, known))
    assert "8 %" in lines[3]
    assert lines[-1] == "Nominal rate of eth0: 1.25 GB/s, one way."
