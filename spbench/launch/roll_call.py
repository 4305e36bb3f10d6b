"""Ranks that torchrun or srun started learn who is there before they form a process group.

They meet at the key-value store of MASTER_ADDR and MASTER_PORT, which torchrun holds, or rank 0:

    here/R    who rank R is, and what it was asked for    the first that says to be rank R
    roll      what rank 0 has decided for all of them     rank 0
    read/R    rank R knows the roll                       rank R

A process group that lacks a rank only waits. Here every rank ends within the limit and says who is
missing, or what differs.
"""

import os
import socket
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import final

from pydantic import BaseModel, Field

from spbench.comm.kv_store import POLL_S, KeyValueStore, KeyValueStoreError, in_time, until
from spbench.errors import UNFIT, Failure
from spbench.launch.cluster import difference

READ_S = 3.0
"""For the other ranks to read the roll, since the store may end with rank 0."""
ADVICE = "give every rank the same command, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"


class Arrival(BaseModel):
    """A rank that has come, and what must be the same on all of them, by name."""

    rank: int
    asked: dict[str, str]
    host: str = Field(default_factory=socket.gethostname)
    pid: int = Field(default_factory=os.getpid)
    nonce: str = Field(default_factory=lambda: uuid.uuid4().hex)
    """Tells two processes apart that say to be the same rank."""

    @property
    def name(self) -> str:
        return f"rank {self.rank} ({self.host})"


class Roll(BaseModel):
    """What rank 0 has decided: how all ranks go on, or why they cannot."""

    hosts: list[str] = []
    pids: list[int] = []
    """The host and the process of each rank."""
    environment: dict[str, str] = {}
    """Variables to set in every rank."""
    why_not: str = ""
    code: int = UNFIT


@final
@dataclass(frozen=True, kw_only=True)
class RollCall:
    """One rank's part in the roll call."""

    host: str
    port: int
    holds_store: bool
    """Whether this process holds the store, as rank 0 does without torchrun."""
    me: Arrival
    ranks: int
    within_s: float
    attempt: str = "0"
    """Which start of the ranks it is: torchrun may keep its store over several."""

    def answer(self, decide: Callable[[], dict[str, str]] = dict) -> tuple[Roll, KeyValueStore]:
        """The roll and the store, once all ranks have come. ``decide``: called on rank 0 alone,
        the variables to set. Raises Failure on all ranks, if rank 0 does or ranks are missing."""
        answered = in_time(lambda: self._roll(decide), self.within_s + 2 * READ_S)
        if answered is None:
            raise self._failure("does not answer any more")
        roll, _ = answered
        if roll.why_not:
            raise Failure(roll.why_not, roll.code)
        if len(roll.hosts) != self.ranks:
            differs = f"has WORLD_SIZE {self.ranks}, rank 0 has {len(roll.hosts)}"
            raise Failure(f"{self.me.name} {differs}; {ADVICE}", UNFIT)
        return answered

    def _roll(self, decide: Callable[[], dict[str, str]]) -> tuple[Roll, KeyValueStore]:
        deadline_s = time.monotonic() + self.within_s
        store = self._open(deadline_s)
        try:
            text = store.claim(self._key("here", self.me.rank), self.me.model_dump_json())
            first = Arrival.model_validate_json(text)
            if first.nonce != self.me.nonce:
                raise Failure(
                    f"{first.name} is there already; give each process its own RANK, and each "
                    f"launch its own MASTER_PORT",
                    UNFIT,
                )
            if self.me.rank == 0:
                return self._call(store, deadline_s, decide), store
            return self._hear(store, deadline_s + READ_S), store
        except KeyValueStoreError as error:
            raise self._failure(f"is lost: {error}") from None

    def _open(self, deadline_s: float) -> KeyValueStore:
        if not self.holds_store:
            self._wait_for_port(deadline_s)
        left_s = max(1.0, deadline_s - time.monotonic())
        try:
            return KeyValueStore(self.host, self.port, keeps=self.holds_store, wait_s=left_s)
        except KeyValueStoreError as error:
            if "already in use" in str(error):
                raise self._failure("is taken by another program") from None
            raise self._failure(f"is not a store: {error}") from None

    def _wait_for_port(self, deadline_s: float) -> None:
        """torch would wait as well, but twice as long and with C++ stacks on stderr."""
        while True:
            with suppress(OSError):
                socket.create_connection((self.host, self.port), timeout=1.0).close()
                return
            if time.monotonic() > deadline_s:
                raise self._failure(f"has not answered within {self._limit}")
            time.sleep(POLL_S)

    def _call(
        self, store: KeyValueStore, deadline_s: float, decide: Callable[[], dict[str, str]]
    ) -> Roll:
        """Waits for all ranks, tells them the roll, and waits until they know it."""
        there = self._arrivals(store, deadline_s)
        why_not = difference([(rank.name, rank.asked) for rank in there]) or self._absence(there)
        try:
            variables = {} if why_not else decide()
            hosts, pids = [rank.host for rank in there], [rank.pid for rank in there]
            roll = Roll(hosts=hosts, pids=pids, environment=variables, why_not=why_not)
        except Failure as refusal:
            roll = Roll(why_not=str(refusal), code=refusal.code)
        store.post(self._key("roll"), roll.model_dump_json())
        others = [rank.rank for rank in there if rank.rank != 0]
        until(lambda: all(store.read(self._key("read", k)) for k in others), READ_S)
        return roll

    def _hear(self, store: KeyValueStore, deadline_s: float) -> Roll:
        """Waits for the roll. Raises Failure if rank 0 does not come."""
        text = until(lambda: store.read(self._key("roll")), deadline_s - time.monotonic())
        if not text:
            raise Failure(self._absence(self._arrivals(store, 0.0)), UNFIT)
        store.post(self._key("read", self.me.rank), "yes")
        return Roll.model_validate_json(text)

    def _arrivals(self, store: KeyValueStore, deadline_s: float) -> list[Arrival]:
        """The ranks that have come by then, or at once if one differs from the others."""
        there: dict[int, Arrival] = {}

        def all_or_odd() -> bool:
            for rank in set(range(self.ranks)) - there.keys():
                if text := store.read(self._key("here", rank)):
                    there[rank] = Arrival.model_validate_json(text)
            return len(there) == self.ranks or any(
                rank.asked != self.me.asked for rank in there.values()
            )

        until(all_or_odd, deadline_s - time.monotonic())
        return [there[rank] for rank in sorted(there)]

    def _absence(self, there: Sequence[Arrival]) -> str:
        """Who did not come, in a sentence; blank if all did."""
        missing = sorted(set(range(self.ranks)) - {rank.rank for rank in there})
        if not missing:
            return ""
        numbers = ", ".join(map(str, missing))
        names = f"{'rank' if len(missing) == 1 else 'ranks'} {numbers} of {self.ranks}"
        come = ", ".join(rank.name for rank in there)
        return f"{names} did not come within {self._limit}; there: {come}; {ADVICE}"

    @property
    def _limit(self) -> str:
        return f"{self.within_s:g} s (--hang-after)"

    def _failure(self, what: str) -> Failure:
        """An error of the place where the ranks meet."""
        place = f"{self.host}:{self.port} (MASTER_ADDR, MASTER_PORT)"
        return Failure(f"{self.me.name}: {place} {what}; {ADVICE}", UNFIT)

    def _key(self, *parts: object) -> str:
        return "/".join(map(str, ("spbench", self.attempt, *parts)))
