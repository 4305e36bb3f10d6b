"""Launches that take turns, block by block, with real sockets and threads in place of ranks."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from spbench.launch.launcher import Deadlines
from spbench.launch.local import LocalLauncher
from spbench.launch.turn_seat import Seat
from spbench.regression import base_and_head
from spbench.regression.base_and_head import Runner, run_alternately
from spbench.regression.turn_server import TurnServer
from spbench.results.machine import Allowed
from spbench.results.record import Record
from spbench.results.store import Store
from spbench.sweep.run import Sweep
from spbench.worker.turn_client import VARIABLE, TurnClient
from spbench.workload.case import Case, Cell, MeasurementBudget
from spbench.workload.catalogue import find

FIXED = MeasurementBudget(min_warmup=5, max_warmup=5, min_iterations=10, max_iterations=10)
"""Step 9 is the first timed step, and 10 the first silent step, which only barriers show."""
CASE = Case(workload=find("axes-2d", "verify"), strategy="dsp", ranks=2, device="cpu", effort=FIXED)
SOON_S = 20.0
TIDY_S = 0.01


@pytest.fixture
def server() -> Iterator[TurnServer]:
    with TurnServer() as made:
        yield made


def joined(seat: Seat, ranks: int = 1, alive: Callable[[], None] = lambda: None) -> TurnClient:
    made = TurnClient.of(seat.environment, ranks, alive)
    assert made is not None
    return made


def until(seen: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SOON_S
    while not seen():
        assert time.monotonic() < deadline
        time.sleep(TIDY_S / 10)


def end(turns: TurnClient) -> None:
    """Closes the connection, as the end of a rank's process does."""
    turns._line.close()


class Launch:
    """The ranks of a launch; each logs the begin and end of its blocks."""

    def __init__(self, name: str, seat: Seat, ranks: int, blocks: int, log: list[str]) -> None:
        self.name, self.seat, self.log, self.blocks = name, seat, log, blocks
        seat.expect()
        self.threads = [
            threading.Thread(target=self.rank, args=(ranks,), daemon=True) for _ in range(ranks)
        ]

    def start(self) -> None:
        for thread in self.threads:
            thread.start()

    def rank(self, ranks: int) -> None:
        turns = joined(self.seat, ranks)
        for _ in range(self.blocks):
            turns.take()
            self.log.append(f"{self.name}(")
            time.sleep(TIDY_S)
            self.log.append(f"{self.name})")
        end(turns)

    def join(self) -> None:
        for thread in self.threads:
            thread.join(SOON_S)
            assert not thread.is_alive()


def test_without_a_server_there_are_no_turns(tmp_path: Path) -> None:
    """A launch without a server, or whose server has gone, runs by itself."""
    assert TurnClient.of({}, 2, lambda: None) is None
    assert TurnClient.of({VARIABLE: str(tmp_path / "gone")}, 2, lambda: None) is None
    with TurnServer() as server:
        turns = joined(server.seats[0])
        server.seats[1].expect()
    turns.take()
    turns.take()


def test_blocks_of_two_launches_alternate(server: TurnServer) -> None:
    """All ranks of one launch run, then all of the other; a longer launch goes on alone."""
    log: list[str] = []
    first = Launch("A", server.seats[0], 2, 3, log)
    second = Launch("B", server.seats[1], 3, 5, log)
    first.start()
    until(lambda: server.seats[0].waits)
    assert log == []
    second.start()
    first.join()
    second.join()
    order = [word[0] for word in log]
    begins = {"A": 4, "B": 6}  # words of a block: two for each rank
    blocks = []
    while order:
        name = order[0]
        assert order[: begins[name]] == [name] * begins[name]
        del order[: begins[name]]
        blocks.append(name)
    assert "".join(blocks) == "ABABABBB"
    assert [seat.turns for seat in server.seats] == [2, 3]  # right behind the other's


def test_a_launch_that_never_asks_is_waited_for_until_it_has_ended(server: TurnServer) -> None:
    """Older code does not know turns, and a launch whose gate fails never asks."""
    log: list[str] = []
    first = Launch("A", server.seats[0], 1, 2, log)
    server.seats[1].expect()
    first.start()
    until(lambda: server.seats[0].waits)
    time.sleep(TIDY_S)
    assert log == []
    assert server.seats[0].waited_s > 0
    server.seats[1].leave()
    first.join()
    assert log == ["A(", "A)"] * 2
    assert server.seats[0].turns == 0


def test_a_rank_that_dies_in_its_turn_holds_nobody_up(server: TurnServer) -> None:
    """The dead rank's connection closes."""
    log: list[str] = []
    dying = server.seats[0]
    dying.expect()
    other = Launch("B", server.seats[1], 1, 2, log)
    turns = joined(dying)
    thread = threading.Thread(target=turns.take)
    thread.start()
    other.start()
    until(lambda: not thread.is_alive())
    assert len(log) <= 2
    end(turns)
    other.join()


def test_a_turn_that_hangs_ends_the_turns() -> None:
    """The other launch goes on; once both have left, turns are taken again."""
    with TurnServer() as server:
        for _ in range(2):
            log: list[str] = []
            server.seats[0].expect()
            server.seats[0].watch(lambda: True)
            hung = joined(server.seats[0])
            other = Launch("B", server.seats[1], 1, 2, log)
            thread = threading.Thread(target=hung.take)
            thread.start()
            other.start()
            until(lambda thread=thread: not thread.is_alive())  # type: ignore[misc]
            other.join()
            assert log == ["B(", "B)"] * 2
            end(hung)
            for seat in server.seats:
                seat.leave()


def test_who_waits_is_alive(server: TurnServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A waiting rank calls ``alive``, so that it does not count as hung."""
    monkeypatch.setattr("spbench.worker.turn_client.LOOK_S", TIDY_S)
    called: list[int] = []
    for seat in server.seats:
        seat.expect()
    turns = joined(server.seats[0], alive=lambda: called.append(1))
    thread = threading.Thread(target=turns.take)
    thread.start()
    until(lambda: len(called) > 2)
    server.seats[1].leave()
    thread.join(SOON_S)
    assert not thread.is_alive()


class Watched:
    """Stands in for a Sweep whose single rank takes turns, and whose launcher looks at the seat."""

    def __init__(self, name: str, seat: Seat, log: list[str], *, asks: bool = True) -> None:
        self.name, self.seat, self.log, self.asks = name, seat, log, asks

    def run(self, cell: Cell) -> tuple[str, dict[str, float]]:
        self.log.append(f"{self.name} starts")
        if self.asks:
            turns = joined(self.seat)
            thread = threading.Thread(target=lambda: [turns.take(), turns.take(), end(turns)])
            thread.start()
            while thread.is_alive():
                self.seat.look()
                time.sleep(TIDY_S / 10)
        self.log.append(f"{self.name} ends")
        return self.name, {}


def order_of(
    server: TurnServer, log: list[str], asks: dict[str, bool], *, short_of_memory: bool = False
) -> list[str]:
    made = [
        Runner(name=name, sweep=Watched(name, seat, log, asks=asks[name]), seat=seat)  # type: ignore[arg-type]
        for name, seat in zip("AB", server.seats, strict=True)
    ]
    cells = [
        Cell(case=CASE.model_copy(update={"launch": launch}), why_not=None) for launch in range(2)
    ]
    rounds = [run_alternately(made, cell) for cell in cells]
    assert [was_short for _, was_short in rounds] == [short_of_memory] * len(cells)
    return [f"{runner.name}{record}" for ran, _ in rounds for runner, record in ran]


def test_the_second_launch_comes_while_the_first_waits(server: TurnServer) -> None:
    """Each runner goes first once, and each record comes with its own runner."""
    log: list[str] = []
    assert order_of(server, log, {"A": True, "B": True}) == ["AA", "BB", "BB", "AA"]
    assert log == [
        *("A starts", "B starts", "B ends", "A ends"),
        *("B starts", "A starts", "A ends", "B ends"),
    ]


def test_an_end_that_is_seen_late_makes_no_launch_longer(server: TurnServer) -> None:
    """The parent watches the second launch when the first one ends."""
    first, second = server.seats

    def meanwhile() -> None:
        end(turns)
        until(lambda: not first.connections)
        time.sleep(10 * TIDY_S)

    first.expect(meanwhile)
    second.expect()
    turns = joined(first)
    turns._line.sendall(b"1\n")
    until(lambda: first.waits)
    first.look()
    assert first.waited_s >= 10 * TIDY_S
    first.expect()
    assert first.waited_s == 0.0


def test_code_that_knows_no_turns_is_followed_or_follows(server: TurnServer) -> None:
    """One launch follows the other, whichever of them does not ask for turns."""
    log: list[str] = []
    assert order_of(server, log, {"A": False, "B": True}) == ["AA", "BB", "BB", "AA"]
    assert log == [
        *("A starts", "A ends", "B starts", "B ends"),
        *("B starts", "A starts", "A ends", "B ends"),
    ]


def test_without_memory_for_two_they_follow_each_other(
    server: TurnServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first launch does not wait for the second, and each round says so."""
    log: list[str] = []
    monkeypatch.setattr(base_and_head, "has_memory_for_another", lambda: False)
    ran = order_of(server, log, {"A": True, "B": True}, short_of_memory=True)
    assert ran == ["AA", "BB", "BB", "AA"]
    assert log == [
        *("A starts", "A ends", "B starts", "B ends"),
        *("B starts", "B ends", "A starts", "A ends"),
    ]


@pytest.mark.parametrize(
    ("free", "limit", "fits"),
    [(25, None, True), (23, None, False), (99, 45, True), (99, 43, False)],
)
def test_whether_there_is_memory_for_two(
    monkeypatch: pytest.MonkeyPatch, free: int, limit: int | None, fits: bool
) -> None:
    """Memory suffices if the peaks and a fifth more are free, also within the group's limit."""
    ours = SimpleNamespace(children=lambda recursive: [SimpleNamespace(pid=1)] * 2)
    monkeypatch.setattr(psutil, "Process", lambda: ours)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=free))
    monkeypatch.setattr(base_and_head, "_peak_bytes", lambda pid: 10 * pid)
    monkeypatch.setattr(base_and_head, "allowed", lambda: Allowed(memory_bytes=limit))
    assert base_and_head.has_memory_for_another() == fits


def test_the_peak_of_a_process() -> None:
    """The peak of a process that has ended is 0."""
    assert base_and_head._peak_bytes(os.getpid()) >= psutil.Process().memory_info().rss // 2
    assert base_and_head._peak_bytes(2**31 - 1) == 0


@pytest.mark.long
@pytest.mark.parametrize("fault", ["", "hang@rank1:step10"])
def test_real_launches_take_turns(
    server: TurnServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """The second launch starts while the first waits. If the first hangs in its turn, the second
    still runs its steps, and the row of the first names the rank that hung."""
    monkeypatch.setattr(base_and_head, "has_memory_for_another", lambda: True)
    seen: list[tuple[str, bool]] = []

    class Noted(Sweep):
        """Notes, as its launch begins, whether the first one waits for a turn."""

        def run(self, cell: Cell) -> tuple[Record, Mapping[str, float]] | None:
            seen.append((self.run_id, server.seats[0].waits))
            return super().run(cell)

    before = set(psutil.Process().children())
    made = []
    for name, seat, planted in zip("AB", server.seats, (fault, ""), strict=True):
        store = Store(tmp_path / name)
        log = tmp_path / name / "logs" / "launcher.log"
        launcher = LocalLauncher(log, {"SPBENCH_FAULT": planted}, seat=seat)
        deadlines = Deadlines(hang_s=4.0)
        sweep = Noted(store=store, launcher=launcher, run_id=name, session="s", deadlines=deadlines)
        made.append(Runner(name=name, sweep=sweep, seat=seat, renews_launcher=True))

    rows, _ = run_alternately(made, Cell(case=CASE, why_not=None))
    records = [record for _, record in rows]
    assert set(psutil.Process().children()) <= before
    assert seen == [("A", False), ("B", True)]
    first, second = records
    assert (first.run_id, second.run_id) == ("A", "B")
    assert (first.status, second.status) == ("hang" if fault else "ok", "ok"), first.reason
    assert not fault or "rank 1 stopped in step 10" in first.reason
    assert second.step_ms is not None and second.step_ms > 0
    assert second.launch_s is not None and second.launch_s > 0
    assert fault or all(record.turns is not None and record.turns > 1 for record in records)
