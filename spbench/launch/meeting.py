"""How ranks that somebody else started learn who is there, and how one of them failed.

They meet at the key-value store of MASTER_ADDR and MASTER_PORT, which torchrun holds, or rank 0:

    here/R     who rank R is, and what it was asked for    rank R
    roll       what rank 0 has decided for all of them     rank 0
    failed/R   how rank R failed                           rank R

torch's ``monitored_barrier`` names the ranks that stay behind in a group that exists. A group that
lacks a rank never comes to exist, and its ranks only wait: hence the roll, after which every rank
ends within the limit and says who is missing, or what differs.
"""

import hashlib
import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import final

from pydantic import BaseModel, Field

from spbench.comm.kv_store import KeyValueStore, KeyValueStoreError, in_time, until
from spbench.errors import UNFIT, Failure
from spbench.launch.cluster import difference, versions_here
from spbench.launch.launcher import is_cause
from spbench.results.hand_over import Sample

READ_S = 3.0
"""For other ranks to read the roll, or to say how they failed: the store may end with rank 0."""
ADVICE = "give every rank the same command, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"
Decide = Callable[[], dict[str, str]]


class Arrival(BaseModel):
    """A rank that has come, and what must be the same on all of them, by name."""

    rank: int
    asked: dict[str, str]
    host: str = Field(default_factory=socket.gethostname)

    @property
    def name(self) -> str:
        return f"rank {self.rank} ({self.host})"


class Roll(BaseModel):
    """What rank 0 has decided: how all ranks go on, or why they cannot."""

    hosts: list[str] = []
    """The host of each rank."""
    environment: dict[str, str] = {}
    """Variables to set in every rank."""
    why_not: str = ""
    code: int = UNFIT


@final
@dataclass(frozen=True, kw_only=True)
class Meeting:
    """One rank's access to the store."""

    store: KeyValueStore
    me: Arrival
    ranks: int
    within_s: float
    start: str = "0"
    """Which start of the ranks it is: torchrun may keep its store over several."""

    @property
    def rank(self) -> int:
        return self.me.rank

    def call_roll(self, decide: Decide = dict) -> Roll:
        """The roll, once all ranks have come. ``decide``: called on rank 0 alone, the variables to
        set. Raises Failure on all ranks if rank 0 does, if one is missing, or if one differs."""
        self.store.post(self._key("here", self.rank), self.me.model_dump_json())
        if self.rank == 0:
            roll = self._decided(decide)
            self.store.post(self._key("roll"), roll.model_dump_json())
        else:
            # Rank 0 waits as long for the last rank, and decides then: others give it a little
            # more.
            text = until(lambda: self.store.read(self._key("roll")), self.within_s + READ_S)
            there = [] if text else self._arrivals(0.0)
            roll = Roll.model_validate_json(text) if text else Roll(why_not=self._absence(there))
        if not roll.why_not and len(roll.hosts) != self.ranks:
            differs = f"has WORLD_SIZE {self.ranks}, rank 0 has {len(roll.hosts)}"
            raise Failure(f"{self.me.name} {differs}; {ADVICE}", UNFIT)
        if roll.why_not:
            if self.rank == 0:
                time.sleep(READ_S)  # the other ranks read why, too
            raise Failure(roll.why_not, roll.code)
        return roll

    def _decided(self, decide: Decide) -> Roll:
        there = self._arrivals(self.within_s)
        why_not = difference([(rank.name, rank.asked) for rank in there]) or self._absence(there)
        if why_not:
            return Roll(why_not=why_not)
        try:
            return Roll(hosts=[rank.host for rank in there], environment=decide())
        except Failure as refusal:
            return Roll(why_not=str(refusal), code=refusal.code)

    def _arrivals(self, within_s: float) -> list[Arrival]:
        """The ranks that have come by then, or at once if one differs from this one."""
        there: dict[int, Arrival] = {}

        def all_or_odd() -> bool:
            for rank in set(range(self.ranks)) - there.keys():
                if text := self.store.read(self._key("here", rank)):
                    there[rank] = Arrival.model_validate_json(text)
            # One that was asked for something else makes waiting for the rest pointless.
            differs = any(rank.asked != self.me.asked for rank in there.values())
            return differs or len(there) == self.ranks

        until(all_or_odd, within_s)
        return [there[rank] for rank in sorted(there)]

    def _absence(self, there: Sequence[Arrival]) -> str:
        """Who did not come, in a sentence; blank if all did."""
        missing = sorted(set(range(self.ranks)) - {rank.rank for rank in there})
        if not missing:
            return ""
        names = f"{'rank' if len(missing) == 1 else 'ranks'} {', '.join(map(str, missing))}"
        come = ", ".join(rank.name for rank in there)
        limit = f"{self.within_s:g} s (--hang-after)"
        return f"{names} of {self.ranks} did not come within {limit}; there: {come}; {ADVICE}"

    def leave(self, failure: Sample) -> None:
        """Says how this rank failed, if the store still takes it."""
        with suppress(KeyValueStoreError):
            self.store.post(self._key("failed", self.rank), failure.model_dump_json())

    def failures(self, within_s: float = READ_S) -> list[Sample]:
        """How other ranks failed, as far as they have said it by then."""
        left: dict[int, Sample] = {}

        def all_left() -> bool:
            with suppress(KeyValueStoreError):
                for rank in set(range(self.ranks)) - {self.rank} - left.keys():
                    if text := self.store.read(self._key("failed", rank)):
                        left[rank] = Sample.model_validate_json(text)
            return len(left) == self.ranks - 1

        until(all_left, within_s)
        return [left[rank] for rank in sorted(left)]

    def why_not_joined(self, reason: str) -> str:
        """Which rank could not join the process group, or why none did, in a sentence."""
        for other in filter(is_cause, self.failures()):
            return f"rank {other.rank} ({other.host}) could not join the others: {other.reason}"
        return (
            f"{self.me.name} did not reach the others within {self.within_s:g} s (--hang-after): "
            f"{reason}; GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME names the interface that leads "
            f"to them"
        )

    def _key(self, *parts: object) -> str:
        return "/".join(map(str, ("spbench", self.start, *parts)))


def meet(
    where: tuple[str, int], within_s: float, asked: str, decide: Decide
) -> tuple[Meeting, Roll]:
    """Meets the other ranks of the launch that this process's variables name.

    Parameters
    ----------
    where:
        Host and port of the store.
    within_s:
        Seconds in which all ranks must have come.
    asked:
        What all ranks must have been asked for.
    decide:
        Called on rank 0 alone: the variables to set in all ranks.

    Raises
    ------
    Failure
        As ``call_roll``, and where nobody keeps the store, or it does not answer.
    """
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    digest = hashlib.sha256(asked.encode()).hexdigest()[:12]
    alike = {"the cases": digest, "--hang-after": f"{within_s:g} s"}
    me = Arrival(rank=rank, asked={"WORLD_SIZE": f"{size}", **versions_here(), **alike})
    start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    keeps = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"

    def roll() -> tuple[Meeting, Roll]:
        store = open_store(*where, keeps=keeps, within_s=within_s)
        meeting = Meeting(store=store, me=me, ranks=size, within_s=within_s, start=start)
        return meeting, meeting.call_roll(decide)

    place = f"{me.name}: {where[0]}:{where[1]} (MASTER_ADDR, MASTER_PORT)"
    try:
        # To connect and to meet may each take the whole limit, and each look at the store a little
        # more.
        met = in_time(roll, 2 * within_s + 3 * READ_S)
    except KeyValueStoreError as error:
        raise Failure(f"{place}: {error}; {ADVICE}", UNFIT) from None
    if met is None:  # a stopped process keeps the store
        raise Failure(f"{place} does not answer any more; {ADVICE}", UNFIT)
    return met


def open_store(host: str, port: int, *, keeps: bool, within_s: float) -> KeyValueStore:
    """The store at which the ranks meet.

    Parameters
    ----------
    host, port:
        Where it listens.
    keeps:
        Whether it lives in this process, as in rank 0's without torchrun.
    within_s:
        Seconds to wait for whoever keeps it.

    Raises
    ------
    KeyValueStoreError
        Where nobody keeps it, or another program has the port.
    """

    def answers() -> bool:
        with suppress(OSError):
            socket.create_connection((host, port), timeout=1.0).close()
            return True
        return False

    # torch would wait as well, but twice as long and with C++ stacks on stderr.
    if not keeps and not until(answers, within_s):
        raise KeyValueStoreError(f"nobody has answered within {within_s:g} s (--hang-after)")
    return KeyValueStore(host, port, keeps=keeps, wait_s=max(1.0, within_s))
