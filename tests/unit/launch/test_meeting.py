"""Ranks that somebody else started: who is missing or differs, the same sentence on all of them."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
from helpers.golden import HOST as HIDE_HOST
from helpers.golden import Golden

from spbench.comm.kv_store import KeyValueStore
from spbench.errors import UNFIT, USAGE, Failure
from spbench.launch.meeting import Arrival, Meeting, Roll, meet
from spbench.results.hand_over import Sample

ASKED = {"WORLD_SIZE": "2", "torch": "2", "the cases": "abc"}
HOST = socket.gethostname()


def meeting(store: KeyValueStore, rank: int, ranks: int = 2, **more: Any) -> Meeting:
    """A rank at a store that torchrun keeps."""
    facts = {"within_s": 0.6, "me": Arrival(rank=rank, asked=ASKED)} | more
    return Meeting(store=store.another(), ranks=ranks, **facts)


def answers(
    meetings: Sequence[Meeting], decide: Callable[[], dict[str, str]] = dict
) -> list[Roll | Failure]:
    """What each of these ranks learns."""

    def one(rank: Meeting) -> Roll | Failure:
        try:
            return rank.call_roll(decide)
        except Failure as failure:
            return failure

    with ThreadPoolExecutor() as pool:
        return list(pool.map(one, meetings))


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other ranks get 0.2 s more than the limit to read the roll."""
    monkeypatch.setattr("spbench.launch.meeting.READ_S", 0.2)


@pytest.fixture
def store() -> KeyValueStore:
    return KeyValueStore("127.0.0.1", 0, keeps=True)


def test_all_have_come(store: KeyValueStore) -> None:
    """Each rank learns the hosts, and the variables of which rank 0 decides."""
    decisions = iter([{"X": "1"}])
    rolls = answers([meeting(store, 1), meeting(store, 0)], lambda: next(decisions))
    roll = Roll(hosts=[HOST] * 2, environment={"X": "1"})
    assert rolls == [roll, roll]


def test_what_rank_0_refuses_is_refused_for_all(store: KeyValueStore) -> None:
    """Ranks of mixed nodes do not decide apart: sentence and exit code are rank 0's."""

    def refuse() -> dict[str, str]:
        raise Failure("two environments", USAGE)

    failures = answers([meeting(store, 0), meeting(store, 1)], refuse)
    assert [(str(f), getattr(f, "code", 0)) for f in failures] == [("two environments", USAGE)] * 2


def said_by_all(failures: Sequence[Roll | Failure]) -> str:
    """The one sentence with which all ranks end as unfit."""
    assert all(isinstance(failure, Failure) and failure.code == UNFIT for failure in failures)
    (said,) = {str(failure) for failure in failures}
    return said


@pytest.mark.parametrize("there", [[0, 2], [0], [1, 2]])
def test_missing_ranks_are_named(store: KeyValueStore, there: list[int], golden: Golden) -> None:
    """Within the limit every rank that has come names those that have not, rank 0 among them."""
    start_s = time.monotonic()
    failures = answers([meeting(store, rank, 4, within_s=0.3) for rank in there])
    assert time.monotonic() - start_s < 3
    golden(said_by_all(failures), hide=HIDE_HOST)


@pytest.mark.parametrize(("name", "value"), [("WORLD_SIZE", "3"), ("the cases", "abd")])
def test_a_difference_is_named(store: KeyValueStore, name: str, value: str, golden: Golden) -> None:
    """Other arguments, by their digest, and another WORLD_SIZE are refused on all ranks at once."""
    other = Arrival(rank=1, asked=ASKED | {name: value})
    failures = answers(
        [meeting(store, 0, within_s=60.0), meeting(store, 1, within_s=60.0, me=other)]
    )
    golden(said_by_all(failures), hide=HIDE_HOST)


def test_a_rank_too_many(store: KeyValueStore, golden: Golden) -> None:
    """It does not join, and says why; the others go on."""
    rolls = answers([meeting(store, 0), meeting(store, 1)])
    assert all(isinstance(roll, Roll) for roll in rolls)
    (third,) = answers([meeting(store, 2, 3)])
    golden(third, hide=HIDE_HOST)


@pytest.mark.parametrize("is_taken", [False, True])
def test_places_where_no_rank_meets_another(
    monkeypatch: pytest.MonkeyPatch, is_taken: bool
) -> None:
    """A port that is taken and one where nothing listens are named, in time."""
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    rank = "0" if is_taken else "1"
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with closing(socket.socket()) as other:
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
        if is_taken:
            other.listen()
        with pytest.raises(Failure) as refused:
            meet(("127.0.0.1", port), 0.3, "", dict)
    place = f"rank {rank} ({HOST}): 127.0.0.1:{port} (MASTER_ADDR, MASTER_PORT): "
    assert str(refused.value).startswith(place) and refused.value.code == UNFIT
    why = "already in use" if is_taken else "nobody has answered within 0.3 s (--hang-after); give"
    assert why in str(refused.value)


def test_a_store_that_is_stuck(monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    """A stopped process that holds it, or a program that never answers, holds no rank up."""
    free = threading.Event()
    for name, value in {"RANK": "1", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("spbench.launch.meeting.open_store", lambda *_, **__: free.wait())
    with pytest.raises(Failure) as stuck:
        meet(("127.0.0.1", 1), 0.1, "", dict)
    golden(stuck.value, hide=HIDE_HOST)
    free.set()


def test_why_a_group_did_not_form(store: KeyValueStore, golden: Golden) -> None:
    """A rank that failed is named with its reason; else what would lead ranks to each other."""
    first, second = meeting(store, 0), meeting(store, 1)
    second.leave(Sample(rank=1, status="comm_error", reason="Timed out"))
    golden(first.why_not_joined("late"), "none is named", hide=HIDE_HOST)
    second.leave(Sample(rank=1, status="crash", reason="no GPU", host="b"))
    golden(first.why_not_joined("late"), "one failed")


def test_what_ranks_must_agree_on(store: KeyValueStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cases and the limit of silence, by name, so that a difference is told."""
    variables = {"RANK": "1", "WORLD_SIZE": "2", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(Meeting, "call_roll", lambda meeting, decide: meeting.me.asked)

    def asked(cases: str, hang_s: float) -> Any:
        return meet((store.host, store.port), hang_s, cases, dict)[1]

    one, other_cases, other_limit = asked("a", 7.0), asked("b", 7.0), asked("a", 8.0)
    assert asked("a", 7.0) == one and one["WORLD_SIZE"] == "2"
    assert [name for name in one if one[name] != other_cases[name]] == ["the cases"]
    assert [name for name in one if one[name] != other_limit[name]] == ["--hang-after"]
