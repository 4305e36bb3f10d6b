"""``spbench init --cluster``: a machine by logs of its links, and what it recommends then."""

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
from spbench.projection.microbench.imported_links import with_logs
from spbench.projection.microbench.nccl_logs import NAMES
from spbench.workload.mesh import Mesh

L20 = find("l20-pcie")
ASKED = ("wan-2.2-ti2v-5b", "-g", "8", "--set", "mode=forward", "-s", "ulysses,ring", "--json")
MADE = "ours.yaml"
LIKE = ("init", "--cluster", "ours", "--like", "l20-pcie", "--from")


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
        words.append(str(write(folder, f"{test}_perf.log", log)))
    (folder / MADE).unlink(missing_ok=True)
    done = spbench(folder, *LIKE, *words, torch=True)
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


def test_a_file_is_short_and_reads_as_what_was_imported(tmp_path: Path) -> None:
    """Each constant that was timed names the logs as its source."""
    imported(tmp_path, exchange_slower=3.0)
    assert len((tmp_path / MADE).read_text().splitlines()) <= 40
    logs = [tmp_path / f"{test}_perf.log" for test in TESTS]
    assert find(str(tmp_path / MADE)) == with_logs("ours", L20, logs).cluster
    rate = find(str(tmp_path / MADE)).levels[1].collectives["all_to_all"]
    assert rate.latency_us.source == rate.gb_per_s.source == "nccl-tests"
    assert (
        "8 ranks on 1 host, alltoall_perf.log" in find(str(tmp_path / MADE)).sources["nccl-tests"]
    )


def test_a_file_that_is_there_stays(tmp_path: Path, golden: Golden) -> None:
    """Whether it is asked for again, or a log is refused."""
    imported(tmp_path)
    before = (tmp_path / MADE).read_bytes()
    again = spbench(tmp_path, *LIKE, "alltoall_perf.log", torch=True)
    assert again.code == USAGE
    golden(again.err, "again")
    bad = write(tmp_path, "bad.log", text("alltoall", 8, at_rate(9.0, 20.0), wrong=("1", "0")))
    refused = spbench(tmp_path, *LIKE, str(bad), torch=True)
    assert refused.code == USAGE
    golden(refused.err, "refused")
    assert (tmp_path / MADE).read_bytes() == before


def test_a_file_in_a_folder_is_like_one_beside_it(tmp_path: Path) -> None:
    """The base is named from where the new file lies."""
    imported(tmp_path)
    words = ("init", "--cluster", "made/next.yaml", "--like", MADE, "--from", "sendrecv_perf.log")
    done = spbench(tmp_path, *words, torch=True)
    assert done.code == DONE, done.err
    made = find(str(tmp_path / "made" / "next.yaml"))
    assert "\nlike: ../ours.yaml\n" in (tmp_path / "made" / "next.yaml").read_text()
    assert made.name == "next"
    assert made.levels == find(str(tmp_path / MADE)).levels


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--cluster", "ours", "--from", "a.log"), "give with --like a cluster that is otherwise"),
        (("--cluster", "ours", "--like", "hgx-h100"), "as in --from nccl-logs/*"),
        (("--cluster", "ours", "--like", "hgx-h10", "--from", "a.log"), "'hgx-h100'? A cluster of"),
        (("--cluster", "o:", "--like", "hgx-h100", "--from", "a"), "'o:' is not a name of a clus"),
        (("--cluster", "ours", "--like", "hgx-h100", "--from", "a.log"), "cannot read a.log"),
        (("mine", "--from", "a.json", "b.json"), "mine b.json a.json: a workload is made"),
        (("mine", "--like", "hgx-h100"), "give --cluster NAME and --from LOGS, too"),
    ],
)
def test_what_no_cluster_is_made_of_is_refused(
    tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    done = spbench(tmp_path, "init", *words, torch=True)
    assert done.code == USAGE
    assert said in " ".join(done.err.split())
    assert not [*tmp_path.iterdir()]
