"""Logs of nccl-tests: what a rank sends and how long it takes, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from helpers.golden import Golden
from helpers.nccl_logs import SIZES, as_json, at_rate, factor, text, write

from spbench.errors import Failure
from spbench.projection.microbench.nccl_logs import Run, read_runs


def read(folder: Path, content: str, name: str = "today.log") -> Run:
    """The one run of a file."""
    (run,) = read_runs(write(folder, name, content))
    return run


@pytest.mark.parametrize(
    ("test", "op"),
    [
        ("all_reduce", "all_reduce"),
        ("all_gather", "all_gather"),
        ("reduce_scatter", "reduce_scatter"),
        ("alltoall", "all_to_all"),
        ("sendrecv", "p2p"),
    ],
)
def test_a_rank_sends_its_part_of_a_buffer(tmp_path: Path, test: str, op: str) -> None:
    """busbw is what a rank sends over the time; a line without bytes does not count."""
    run = read(tmp_path, text(test, sizes=(0, *SIZES)))
    assert (run.op, run.ranks, run.hosts) == (op, 8, ["node-a"])
    assert len(run.points) == len(SIZES)
    sent, seconds = run.largest
    assert sent == 2**30 * factor(test, 8)
    assert sent / (seconds - 20e-6) / 1e9 == pytest.approx(360.0, rel=1e-3)
    assert run.bus_gb_per_s == pytest.approx(sent / seconds / 1e9)


PLAIN = text("all_gather")
STAMPED = re.sub(
    "N/A$", "N/A  2026-11-01 08:00", text("all_gather", wrong=("0", "N/A")), flags=re.M
)
STAMPED = STAMPED.replace("#wrong  \n", "#wrong  timestamp\n")


@pytest.mark.parametrize(
    "content",
    [
        "".join(f"3: {line}\n" for line in PLAIN.splitlines()),
        "".join(f" 0: {line}\n" for line in PLAIN.splitlines()),
        "".join(f"[1,0]<stdout>:{line}\n" for line in PLAIN.splitlines()),
        "".join(f"[1,0]<stdout>: {line}\n" for line in PLAIN.splitlines()),
        "".join(f"[0] {line}\n" for line in PLAIN.splitlines()),
        PLAIN.replace("\n", "\r\n"),
        "\ufeff" + PLAIN,
        text("all_gather", redop=""),
        STAMPED,
        "2026-11-01 loaded modules\n12 nodes\n" + PLAIN + "2 more jobs wait\n",
        PLAIN.replace("# Using devices", "node-a:1:2 [0] NCCL INFO Bootstrap\n# Using devices"),
    ],
    ids=[
        *("srun -l", "srun -l of many", "tag-output", "tag-output of 5", "prepend-rank"),
        *("CRLF", "BOM", "blank redop", "timestamps", "other lines", "debug lines"),
    ],
)
def test_what_stands_around_and_between_changes_nothing(tmp_path: Path, content: str) -> None:
    assert content != PLAIN
    run = read(tmp_path, content)
    assert run.points == read(tmp_path, PLAIN).points
    assert (run.op, run.ranks) == ("all_gather", 8)


def test_several_runs_of_one_file_are_several(tmp_path: Path) -> None:
    """As a batch script leaves them; the place of each is its header's."""
    path = write(
        tmp_path, "suite.log", PLAIN, text("alltoall", ranks=4, seconds=at_rate(90.0, 60.0))
    )
    gather, exchange = read_runs(path)
    assert (gather.op, gather.ranks, gather.place) == ("all_gather", 8, f"{path}:1")
    assert (exchange.op, exchange.ranks) == ("all_to_all", 4)
    assert exchange.place == f"{path}:{PLAIN.count(chr(10)) + 2}"
    assert gather.bus_gb_per_s > 3 * exchange.bus_gb_per_s


def test_json_is_read_as_text_is(tmp_path: Path) -> None:
    run = read(tmp_path, as_json("all_gather"), "all_gather_perf.json")
    as_text = read(tmp_path, PLAIN)
    assert (run.op, run.seats) == (as_text.op, as_text.seats)
    for (sent, seconds), (own, own_s) in zip(run.points, as_text.points, strict=True):
        assert (sent, seconds) == (own, pytest.approx(own_s, rel=1e-3))


def test_the_name_that_is_printed_goes_before_the_file_s(tmp_path: Path) -> None:
    assert read(tmp_path, text("alltoall"), "all_gather.log").op == "all_to_all"
    old = text("alltoall", is_named=False)
    assert read(tmp_path, old, "my-alltoall_perf.8.log").op == "all_to_all"


def side_by_side(first: int = 0) -> str:
    """Two copies without MPI: so many lines of the one first, and then lines in turn."""
    one, other = (text("alltoall", hosts=(host,)).splitlines() for host in ("left", "right"))
    pairs = zip(one[first:], other[: len(other) - first], strict=True)
    together = [
        *one[:first],
        *(line for pair in pairs for line in pair),
        *other[len(other) - first :],
    ]
    return "\n".join(together) + "\n"


ROW = next(line for line in PLAIN.splitlines() if line.startswith("     1048576"))
DEBUG = "node-a:4003:4050 [3] NCCL INFO Connected all rings"
"""What NCCL prints of itself, here in the midst of a row."""
OLD = PLAIN.replace("   redop    root ", "").replace("#wrong", " error")
NAMELESS = text("alltoall", is_named=False)
TWO_TAGS = "".join(f"{int('  4096  ' in line)}: {line}\n" for line in PLAIN.splitlines())
REFUSED = {
    r"today.log is not output of nccl-tests: it has no line": "hello\n",
    r"today.log:1: lists 1 rank; links need 2": text("all_reduce", ranks=1),
    r"today.log:1: lists ranks 0, 7, and not all": text("alltoall", listed=(0, 7)),
    r"today.log:1: no '# Rank' lines": text("alltoall", listed=()),
    r"today.log:16: #wrong is 3 out of place": text("all_reduce", wrong=("3", "0")),
    r"today.log:16: #wrong is 2 in place": text("all_reduce", wrong=("0", "2")),
    r"today.log:1: a test without times": text("alltoall", sizes=()),
    r"today.log: which test is it\?": NAMELESS,
    r"today.log:1: 2 tests, of a version that prints no names": 2 * NAMELESS,
    r"today.log:1: alltoallv_perf is a test of what no": PLAIN.replace("all_gather", "alltoallv"),
    r"today.log:19: busbw is 1.75 times algbw.*does not list all ranks": text("all_reduce").replace(
        "all_reduce", "all_gather"
    ),
    r"today.log:21: not a whole line .* 1048576 262144": PLAIN.replace(ROW, ROW[:40] + DEBUG),
    r"today.log:21: not a whole line .* NCCL INFO": PLAIN.replace(ROW, ROW + DEBUG),
    r"today.log:1: its ranks are in groups 0, 1 \(NCCL_TESTS_SPLIT\)": text("alltoall", groups=2),
    r"today.log:1: ranks 0 and 4 are both on device 0 of host 'gpu'": text(
        "alltoall", hosts=("gpu", "gpu")
    ),
    r"today.log:2: a second header before .* without MPI": side_by_side(),
    r"today.log:8: a second header before .* without MPI": side_by_side(6),
    r"today.log:21: a test starts before that of line 1 ended: two copies": side_by_side(19),
    r"today.log:8: rank 1 is listed twice": PLAIN.replace("Rank  2", "Rank  1"),
    r"today.log:17: '1:' before a line of the table of '0:': two copies": TWO_TAGS,
    r"today.log: tables of '0:' and '1:': two copies": "".join(
        f"{rank}: {line}\n" for rank in (0, 1) for line in PLAIN.splitlines()
    ),
    r"today.log:21: not a whole line .* nan": PLAIN.replace(ROW, ROW.replace("22.55", "  nan")),
    r"today.log:15: output of an old nccl-tests.*size count type time algbw busbw error": OLD,
    r"today.log:2: not whole JSON of nccl-tests": '{"version": 3,\n',
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_not_such_a_log_is_refused(tmp_path: Path, message: str) -> None:
    """With the file, and the line where there is one."""
    with pytest.raises(Failure) as refusal:
        read_runs(write(tmp_path, "today.log", REFUSED[message]))
    assert re.search(message, str(refusal.value), re.S), refusal.value


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("alltoallv.log", "alltoallv is a test of what no strategy does"),
        ("all_gather_and_alltoall.log", "which test is it"),
        ("all_reduce.log", r"busbw is 0.87. times algbw.*is the file named by its test"),
        ("smallalltoall.log", "which test is it"),
    ],
)
def test_the_name_of_a_file_may_tell_another_test(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(Failure, match=message):
        read_runs(write(tmp_path, name, text("alltoall", is_named=False)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"in_place": {"nwrong": 2.0}}, r"results\[0\]: nwrong is 2 in place"),
        ({"out_of_place": {"nwrong": 0.0}}, r"results\[0\]: no time out of place"),
        ({"size": None}, "is not JSON of nccl-tests"),
        ({"out_of_place": None}, "is not JSON of nccl-tests"),
        ({"in_place": [3]}, "is not JSON of nccl-tests"),
        ({"out_of_place": {"time": float("nan")}}, r"results\[0\]: no time out of place"),
    ],
)
def test_wrong_json_is_refused(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    path = write(tmp_path, "alltoall.json", as_json("alltoall", **changes))
    with pytest.raises(Failure, match=message):
        read_runs(path)


def test_json_that_lists_a_rank_twice_is_refused(tmp_path: Path, golden: Golden) -> None:
    data = json.loads(as_json("all_gather"))
    data["config"]["devices"] += data["config"]["devices"][:1]
    with pytest.raises(Failure) as refused:
        read_runs(write(tmp_path, "all_gather.json", json.dumps(data)))
    golden(refused.value)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="cannot read"):
        read_runs(tmp_path / "none.log")
