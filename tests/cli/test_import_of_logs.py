"""``spbench calibrate --import``: a machine by logs of its links, and what it recommends then."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.command_line import spbench
from helpers.golden import Golden
from helpers.nccl_logs import TESTS, Seconds, at_rate, text, write

from spbench.errors import DONE, USAGE
from spbench.projection.costmodel.cluster_file import find
from spbench.projection.costmodel.message_cost import message_cost
from spbench.projection.dryrun.work import Message
from spbench.projection.microbench.nccl_logs import NAMES
from spbench.workload.mesh import Mesh

L20 = find("l20-pcie")
ASKED = ("wan-2.2-ti2v-5b", "-g", "8", "--set", "mode=forward", "-s", "ulysses,ring", "--json")
MADE = "results/clusters/ours.yaml"


def own_times(test: str, slower: float = 1.0) -> Seconds:
    """What l20-pcie has for a test on 8 ranks, at its rates or at a part of them."""

    def seconds(sent: float) -> float:
        message = Message(
            op=NAMES[test], phase="forward", axis="s", sent_bytes=round(sent * slower)
        )
        return message_cost(message, Mesh((("s", 8),)), L20, ["s"]).seconds

    return seconds


def imported(folder: Path, exchange_slower: float = 1.0) -> str:
    """The cluster of five logs of 8 ranks, one a file, as nccl-tests prints them."""
    words = []
    for test in TESTS:
        slower = exchange_slower if test == "alltoall" else 1.0
        log = text(test, 8, own_times(test, slower))
        words += ["--import", str(write(folder, f"{test}_perf.log", log))]
    done = spbench(folder, "calibrate", "ours", "--onto", "l20-pcie", *words, torch=True)
    assert done.code == DONE, done.err
    return done.out


def step_s(folder: Path, cluster: str) -> dict[str, float]:
    done = spbench(folder, "recommend", *ASKED, "-c", cluster, torch=True)
    assert done.code == DONE, done.err
    data: dict[str, Any] = json.loads(done.out)
    return {each["strategy"]: each["step_s"] for each in data["projected"]}


def test_a_cluster_s_own_times_change_nothing_and_a_slow_exchange_ulysses_alone(
    tmp_path: Path, golden: Golden
) -> None:
    """Logs of 8 ranks are of the node: the ring stays where the exchange has a quarter of its
    rate."""
    before = step_s(tmp_path, "l20-pcie")
    said = imported(tmp_path)
    golden(said)
    same = step_s(tmp_path, MADE)
    for strategy in ("ulysses", "ring"):
        assert same[strategy] == pytest.approx(before[strategy], rel=0.05)
    imported(tmp_path, exchange_slower=4.0)
    slower = step_s(tmp_path, MADE)
    assert slower["ring"] == pytest.approx(same["ring"], rel=1e-6)
    assert slower["ulysses"] > 1.5 * same["ulysses"]


def test_a_log_that_is_refused_leaves_the_file_that_is_there(
    tmp_path: Path, golden: Golden
) -> None:
    imported(tmp_path)
    before = (tmp_path / MADE).read_bytes()
    bad = write(tmp_path, "bad.log", text("alltoall", 8, at_rate(9.0, 20.0), wrong=("1", "0")))
    words = ("calibrate", "ours", "--onto", "l20-pcie", "--import", str(bad))
    done = spbench(tmp_path, *words, torch=True)
    assert done.code == USAGE
    golden(done.err)
    assert (tmp_path / MADE).read_bytes() == before
