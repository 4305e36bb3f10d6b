"""Ranks that somebody else started: who is missing or differs, the same sentence on all of them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from spbench.comm.kv_store import KeyValueStore
from spbench.errors import UNFIT, USAGE, Failure
from spbench.launch.failure_notices import DIED, FailureNotices
from spbench.launch.joining import call_roll
from spbench.launch.launcher import LaunchResult, status_and_cause
from spbench.launch.roll_call import Arrival, Roll, RollCall
from spbench.results.hand_over import Sample
from spbench.workload.case import Job

ASKED = {"WORLD_SIZE": "2", "torch": "2", "the cases": "abc"}
HOST = socket.gethostname()


def call(store: KeyValueStore, rank: int, ranks: int = 2, **more: Any) -> RollCall:
    """A rank whose store is kept as torchrun keeps it."""
    known = {"holds_store": False, "within_s": 0.6, "me": Arrival(rank=rank, asked=ASKED)} | more
    return RollCall(host=store.host, port=store.port, ranks=ranks, **known)


def answers(
    calls: Sequence[RollCall], decide: Callable[[], dict[str, str]] = dict
) -> list[Roll | Failure]:
    """What each of these ranks learns."""

    def one(call: RollCall) -> Roll | Failure:
        try:
            return call.answer(decide)[0]
        except Failure as failure:
            return failure

    with ThreadPoolExecutor() as pool:
        return list(pool.map(one, calls))


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other ranks get 0.2 s more than the limit to read the roll."""
    monkeypatch.setattr("spbench.launch.roll_call.READ_S", 0.2)


@pytest.fixture
def store() -> KeyValueStore:
    return KeyValueStore("127.0.0.1", 0, keeps=True)


def test_all_have_come(store: KeyValueStore) -> None:
    """Each rank learns the hosts, the processes, and the variables of which rank 0 decides."""
    decisions = iter([{"X": "1"}])
    rolls = answers([call(store, 1), call(store, 0)], lambda: next(decisions))
    roll = Roll(hosts=[HOST] * 2, pids=[os.getpid()] * 2, environment={"X": "1"})
    assert rolls == [roll, roll]


def test_what_rank_0_refuses_is_refused_for_all(store: KeyValueStore) -> None:
    """Ranks of mixed nodes do not decide apart: sentence and exit code are rank 0's."""

    def refuse() -> dict[str, str]:
        raise Failure("two environments", USAGE)

    failures = answers([call(store, 0), call(store, 1)], refuse)
    assert [(str(f), getattr(f, "code", 0)) for f in failures] == [("two environments", USAGE)] * 2


@pytest.mark.parametrize("there", [[0, 2], [0], [1, 2]])
def test_missing_ranks_are_named(store: KeyValueStore, there: list[int]) -> None:
    """Within the limit every rank that has come names those that have not, rank 0 among them."""
    start_s = time.monotonic()
    failures = answers([call(store, rank, 4, within_s=0.3) for rank in there])
    assert time.monotonic() - start_s < 3
    missing = ", ".join(str(rank) for rank in range(4) if rank not in there)
    come = ", ".join(f"rank {rank} ({HOST})" for rank in there)
    for failure in failures:
        assert isinstance(failure, Failure) and failure.code == UNFIT
        assert str(failure).startswith(
            f"ranks {missing} of 4 did not come within 0.3 s (--hang-after); there: {come}; give "
        )


@pytest.mark.parametrize(("name", "value"), [("WORLD_SIZE", "3"), ("the cases", "abd")])
def test_a_difference_is_named(store: KeyValueStore, name: str, value: str) -> None:
    """Other arguments, by their digest, and another WORLD_SIZE are refused on all ranks at once."""
    other = Arrival(rank=1, asked=ASKED | {name: value})
    failures = answers([call(store, 0, within_s=60.0), call(store, 1, within_s=60.0, me=other)])
    for failure in failures:
        assert isinstance(failure, Failure) and failure.code == UNFIT
        says = f"rank 1 ({HOST}) has {name} {value}, rank 0 ({HOST}) has {ASKED[name]}; install"
        assert str(failure).startswith(says)


def test_a_rank_too_many_and_a_rank_twice(store: KeyValueStore) -> None:
    """Neither joins, and both say why; the others go on."""
    rolls = answers([call(store, 0), call(store, 1)])
    assert all(isinstance(roll, Roll) for roll in rolls)
    (third,) = answers([call(store, 2, 3)])
    assert str(third).startswith(f"rank 2 ({HOST}) has WORLD_SIZE 3, rank 0 has 2; give every")
    (twin,) = answers([call(store, 1)])
    assert str(twin).startswith(f"rank 1 ({HOST}) is there already; give each process its own RANK")


def test_places_where_no_rank_meets_another() -> None:
    """A port that is taken and one where nothing listens are named, in time."""
    with closing(socket.socket()) as other:
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
        arrivals = [Arrival(rank=rank, asked=ASKED) for rank in range(2)]
        known = {"host": "127.0.0.1", "port": port, "ranks": 2, "within_s": 0.3}
        first = RollCall(holds_store=True, me=arrivals[0], **known)
        second = RollCall(holds_store=False, me=arrivals[1], **known)
        (nothing,) = answers([second])
        other.listen()
        (taken,) = answers([first])
    place = f"127.0.0.1:{port} (MASTER_ADDR, MASTER_PORT)"
    assert str(nothing).startswith(f"rank 1 ({HOST}): {place} has not answered within 0.3 s (--")
    assert str(taken).startswith(f"rank 0 ({HOST}): {place} is taken by another program; give")


def test_a_store_that_is_stuck(store: KeyValueStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped process that holds it, or a program that never answers, holds no rank up."""
    free = threading.Event()
    monkeypatch.setattr("spbench.launch.roll_call.KeyValueStore", lambda *_, **__: free.wait())
    (stuck,) = answers([call(store, 1, within_s=0.1)])
    free.set()
    place = f"{store.host}:{store.port} (MASTER_ADDR, MASTER_PORT)"
    assert str(stuck).startswith(f"rank 1 ({HOST}): {place} does not answer any more; give every")


def notices(store: KeyValueStore, rank: int, pids: Sequence[int] = ()) -> FailureNotices:
    return FailureNotices(store, rank, [HOST] * 3, pids)


def test_who_did_not_join_the_group(store: KeyValueStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that failed is named with its reason, else those that left no notice."""
    monkeypatch.setattr(FailureNotices.collect, "__defaults__", (0.2,))
    echo = Sample(rank=1, status="comm_error", reason="Timed out")
    late = notices(store, 1).why_not_joined(echo, 5.0)
    assert (
        late
        == f"rank 0 ({HOST}), rank 2 ({HOST}) did not join the others within 5 s (--hang-after)"
    )
    notices(store, 2).leave(Sample(rank=2, status="crash", reason="no GPU"))
    failed = notices(store, 1).why_not_joined(echo, 5.0)
    assert failed == f"rank 2 ({HOST}) could not join the others: no GPU"
    notices(store, 0).leave(echo.model_copy(update={"rank": 0}))
    notices(store, 2).leave(echo.model_copy(update={"rank": 2}))
    assert "did not reach the others: Timed out; GLOO_" in notices(store, 1).why_not_joined(echo, 5)


@pytest.mark.parametrize("interrupted", [True, False])
def test_a_killed_rank_is_named_in_the_row(store: KeyValueStore, interrupted: bool) -> None:
    """Whether its connection broke first or torchrun ended the others first."""
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    mine = None if interrupted else Sample(rank=0, status="comm_error", reason="Connection closed")
    pids = [os.getpid(), os.getpid(), dead.pid]
    samples = [] if mine is None else [mine]
    blame = notices(store, 0, pids).blame(mine, samples, 5.0)
    result = LaunchResult(ok=False, **{"rank": 0, "exitcode": 1} | blame)
    assert status_and_cause(result, samples, Job(ranks=3, device="cpu")) == (
        "crash",
        f"rank 2 {DIED}",
    )
    left = [Sample(rank=1, status="comm_error", reason="Connection closed"), *samples]
    elsewhere = notices(store, 0).blame(mine, left, 5.0)
    assert elsewhere.get("rank") == (None if interrupted else 2)


def test_interrupted_ranks_have_not_died(store: KeyValueStore) -> None:
    """Ctrl-C ends all ranks; those that end first are not to blame for it."""
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    first = notices(store, 0, [os.getpid(), dead.pid, os.getpid()])
    assert first.another_failed()
    for rank in (1, 2):
        notices(store, rank).leave(Sample(rank=rank, status="interrupted"))
    assert not first.another_failed()


def test_what_ranks_must_agree_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cases and the limit of silence, by name, so that a difference is told."""
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(RollCall, "answer", lambda call, decide: call.me.asked)

    def asked(cases: str, hang_s: float) -> Any:
        job = Job(ranks=2, device="cpu", hang_s=hang_s)
        return call_roll(job, ("127.0.0.1", 1), cases, dict)

    one, other_cases, other_limit = asked("a", 7.0), asked("b", 7.0), asked("a", 8.0)
    assert asked("a", 7.0) == one and one["WORLD_SIZE"] == "2"
    assert [name for name in one if one[name] != other_cases[name]] == ["the cases"]
    assert [name for name in one if one[name] != other_limit[name]] == ["--hang-after"]
