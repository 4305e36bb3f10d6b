"""benchmarks/wire.py: bytes counted against a fake kernel's and the real one's; what is miscounted
is found."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.gate_on_threads import prove, why_wrong
from helpers.golden import Golden
from helpers.network_namespace import PATH, needs_namespace, wire
from helpers.spbench_process import PATHS, PLUGINS
from helpers.thread_group import ThreadGroup
from helpers.variants import suited

from spbench.comm.threaded import ThreadRendezvous, ThreadTransport, run_rank_threads
from spbench.comm.transport import Transport
from spbench.errors import SOME_FAILED, UNFIT
from spbench.strategies.registry import BUILT_IN, load
from spbench.workload.catalogue import find
from spbench.workload.mesh import Groups

MIB = 2**20
TABLE = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop
  eth0: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16
    lo:4603883283 157 0    0    0     0          0         0 777888 999    0    0    0 0 0 0
"""
PROTOCOLS = """\
Icmp: InMsgs InErrors
Icmp: 1 2
Tcp: RtoMin OutSegs RetransSegs InErrs
Tcp: 200 2061 17 3
"""
WORKLOAD = """\
version: 1
name: long-messages
source: "a test"
axes: {time: 8, space: 64}
hidden: 384
heads: 4
depth: 1
block: [{attention: space}, {attention: time}, {mlp: 4}]
batch: 1
dtype: float32
mode: train
"""


class FakeKernel:
    """Sees what ranks that are threads hand over, below our own counting, and adds headers.

    An all-gather and a reduce-scatter of theirs are an all-to-all."""

    def __init__(self, header_share: float = 0.001) -> None:
        self.header_share, self.sent = header_share, 0.0
        self.lock = threading.Lock()

    def watch(self, transport: Transport) -> None:
        n, rank = transport.size, transport.rank
        sizes: dict[str, Callable[..., float]] = {
            "_exchange": lambda _, sent, *__: sum(
                part.nbytes for to, parts in enumerate(sent) if to != rank for part in parts
            ),
            "_all_reduce": lambda x: 2 * (n - 1) / n * x.nbytes,
            "_shift": lambda _, sent, by: sent.nbytes,
        }
        for name, size in sizes.items():
            setattr(transport, name, self._seen(getattr(transport, name), size))
        of_groups = transport._part

        def watched(groups: Groups) -> Transport:
            part = of_groups(groups)
            self.watch(part)
            return part

        transport._part = watched  # type: ignore[method-assign]

    def _seen(self, move: Callable[..., Any], size: Callable[..., float]) -> Callable[..., Any]:
        def moved(*what: Any) -> Any:
            with self.lock:
                self.sent += size(*what)
            return move(*what)

        return moved

    def read(self) -> Any:
        sent = round(self.sent * (1 + self.header_share))
        return wire.Reading(sent_bytes=sent, packets=sent // 2**16, resent_segments=0)


@pytest.fixture(autouse=True)
def _few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_STEPS", 3)


def measured(strategy: str, ranks: int, name: str) -> list[Any]:
    """What every rank counted and the fake kernel saw; ranks are threads."""
    kernel = FakeKernel()
    meetings = [ThreadRendezvous(ranks, 10.0) for _ in range(3)]

    def rank_main(transport: ThreadTransport) -> Any:
        group = ThreadGroup(transport.rank, meetings)
        kernel.watch(group.transports.strategy)
        kernel.watch(group.transports.gradients)
        return wire.measure(strategy, suited(strategy, find(name, "verify")), group, kernel.read)

    return run_rank_threads(ranks, rank_main)


def sent_over_counted(by_rank: list[Any]) -> float:
    return by_rank[0].sent_bytes / sum(one.counted_bytes for one in by_rank)


@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.long), 3])
def test_what_is_counted_right_passes(ranks: int) -> None:
    """Each strategy, uneven shards included: all ranks' bytes, over all steps."""
    for strategy in BUILT_IN:
        by_rank = measured(strategy, ranks, "axes-2d-uneven")
        outcome, line = wire.verdict(by_rank)
        assert (outcome, by_rank[0].steps) == ("passed", 3), line
        assert sent_over_counted(by_rank) == pytest.approx(1.001, abs=1e-5)
        work = suited(strategy, find("axes-2d-uneven", "verify"))
        traffic = load(strategy).on(work, ranks).traffic
        counted = sum(one.counted_bytes for one in by_rank)
        assert counted == by_rank[0].steps * sum(sum(each.sent) for each in traffic)


@pytest.mark.parametrize("strategy", list(BUILT_IN))
@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_what_is_miscounted_is_wrong(
    monkeypatch: pytest.MonkeyPatch, strategy: str, factor: float
) -> None:
    """A transport that counts a tenth less than it sends, and a transport that counts more."""
    right = Transport._count

    def wrong(self: Transport, op: Any, sent: Any) -> None:
        right(self, op, round(sent * factor))

    monkeypatch.setattr(Transport, "_count", wrong)
    by_rank = measured(strategy, 2, "axes-2d")
    assert wire.verdict(by_rank)[0] == "WRONG"
    assert sent_over_counted(by_rank) == pytest.approx(1.001 / factor, rel=1e-3)


def test_an_operation_that_is_not_counted_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of several is enough."""
    right = Transport._count

    def wrong(self: Transport, op: Any, sent: Any) -> None:
        if op != "p2p":
            right(self, op, sent)

    monkeypatch.setattr(Transport, "_count", wrong)
    outcomes = [wire.verdict(measured(name, 2, "axes-2d"))[0] for name in ("ulysses", "rsa")]
    assert outcomes == ["passed", "WRONG"]


def test_what_declines_says_so() -> None:
    """As verify does."""
    outcome, line = wire.verdict(measured("ulysses", 6, "axes-2d-uneven"))
    assert outcome == "declined"
    assert "heads" in line


@pytest.mark.parametrize(
    ("counted", "seen", "packets", "resent", "outcome", "said"),
    [
        (1000 * MIB, 1000 * MIB, 20_000, 0, "passed", ""),
        (1000 * MIB, 1020 * MIB, 20_000, 0, "passed", ""),
        (1000 * MIB, 1000 * MIB - 1, 20_000, 9, "WRONG", "some were not sent"),
        (1000 * MIB, 1021 * MIB, 20_000, 0, "WRONG", "20,000 packets are at most 2,000,000"),
        (1000 * MIB, 1021 * MIB, 20_000, 304, "WRONG", "of which 304 were sent twice, are at most"),
        (1000 * MIB, 1021 * MIB, 20_000, 320, "unclear", "of which 320 were sent twice, may be"),
        (1_000_000, 1_030_000, 300, 0, "unclear", "notices of 300 packets may be the rest"),
        (1_000_000, 1_030_001, 300, 0, "WRONG", "300 packets are at most 30,000"),
        (0, 900, 9, 0, "unclear", "where 0 were counted"),
        (0, 901, 9, 0, "WRONG", "where 0 were counted"),
        (0, 0, 0, 0, "unclear", "where 0 were counted"),
    ],
)
def test_margins(
    counted: int, seen: int, packets: int, resent: int, outcome: str, said: str
) -> None:
    """From 1.000 to 1.02; what short messages or TCP may explain is no fault, nor proof."""
    read = wire.Measured(sent_bytes=seen, packets=packets, resent_segments=resent)
    found, reason = wire.judged(counted, read)
    assert found == outcome
    assert said in reason
    assert bool(reason) == (outcome != "passed")


def test_as_many_steps_as_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the busiest rank has sent enough, within bounds; one step if that is enough."""
    each = measured("dsp", 2, "axes-2d")[0].counted_bytes / 3
    for enough, steps in ((1, 1), (1.5 * each, 2), (1e12, 3)):
        monkeypatch.setattr(wire, "ENOUGH_BYTES", enough)
        assert measured("dsp", 2, "axes-2d")[0].steps == steps


def test_the_counters_of_loopback(tmp_path: Path) -> None:
    """What it sent, not what it received, nor what another interface did."""
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "snmp").write_text(PROTOCOLS)
    (tmp_path / "net" / "dev").write_text(TABLE)
    expected = wire.Reading(sent_bytes=777888, packets=999, resent_segments=17)
    assert wire.loopback(tmp_path) == expected
    (tmp_path / "net" / "dev").write_text("\n".join(TABLE.splitlines()[:3]))
    with pytest.raises(ValueError):
        wire.loopback(tmp_path)


@pytest.mark.parametrize("strategy", ["smuggles", "claims"])
def test_the_gate_is_deceived(monkeypatch: pytest.MonkeyPatch, strategy: str) -> None:
    """What the next test finds, no counter of ours does: results and bytes are as they should."""
    monkeypatch.syspath_prepend(str(PLUGINS))
    work = find("axes-2d", "verify")
    assert why_wrong(prove(work, load(strategy), 2)) == ""


def script(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(PATH), *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | {"PYTHONPATH": PATHS} | variables,
    )


@needs_namespace
@pytest.mark.parametrize("names", [["dsp"], pytest.param([*BUILT_IN], marks=pytest.mark.long)])
def test_real_ranks_on_a_real_interface(tmp_path: Path, names: list[str]) -> None:
    """Our strategies pass; a plug-in that sends uncounted bytes, and another that counts unsent
    bytes, are WRONG."""
    (tmp_path / "long.yaml").write_text(WORKLOAD)
    strategies = [*names, "smuggles", "claims"]
    done = script(tmp_path, "-w", "long.yaml", "-s", ",".join(strategies), "-g", "2")
    assert done.returncode == SOME_FAILED, done.stderr
    found = re.findall(r"(\S+) on 2 ranks, \S+: (\w+): ([\d.]+) of (\d+) MiB", done.stdout)
    assert [name for name, *_ in found] == strategies
    assert [outcome for _, outcome, *_ in found] == ["passed"] * len(names) + ["WRONG"] * 2
    *honest, smuggles, claims = (float(times) for _, _, times, _ in found)
    assert 1.0 <= min(honest) <= max(honest) <= 1.02
    assert claims < 0.98
    assert smuggles > 1.05
    assert min(int(mebibytes) for *_, mebibytes in found) >= 64


def test_a_machine_that_permits_no_namespace(tmp_path: Path, golden: Golden) -> None:
    """Exit code 6, and a sentence: what is missing, or the kernel's word and what would do."""
    done = script(tmp_path, PATH=str(tmp_path))
    assert done.returncode == UNFIT
    golden(done.stderr, "not installed")
    (tmp_path / "unshare").write_text("#!/bin/sh\necho unshare failed: not here >&2\nexit 1\n")
    (tmp_path / "unshare").chmod(0o755)
    done = script(tmp_path, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert done.returncode == UNFIT
    golden(done.stderr, "not permitted")
