"""What ranks that torchrun started leave for rank 0 when their process group has broken.

No launcher of spbench sees these ranks die; they share only the key-value store over which they
met. It outlives the group: torchrun keeps it, or rank 0 does. A rank that fails leaves its cause
there, and one rank of each host shows by a heartbeat that the host lives.
"""

import contextlib
import itertools
import threading
import time
from collections.abc import Sequence
from typing import Any, final

import psutil

from spbench.comm.kv_store import KeyValueStore, KeyValueStoreError, until
from spbench.results.hand_over import Sample

BEAT_S = 2.0
WAIT_S = 3.0
"""For the notices of ranks that fail a little later."""
DIED = "died and left no notice; what started the ranks says how it ended"


@final
class FailureNotices:
    """One rank's access to the store. What a lost store cannot take or give is left out."""

    def __init__(
        self, store: KeyValueStore, rank: int, hosts: Sequence[str], pids: Sequence[int] = ()
    ) -> None:
        """``hosts``, ``pids``: where each rank runs, and as which process."""
        self._store, self._rank, self._hosts, self._pids = store, rank, hosts, pids
        self._firsts = [hosts.index(host) for host in dict.fromkeys(hosts)]
        """The lowest rank of each host."""
        if rank in self._firsts and len(self._firsts) > 1:
            threading.Thread(target=self._beat, daemon=True).start()

    def leave(self, failure: Sample) -> bool:
        """Leaves this rank's notice; whether the store still answers."""
        with contextlib.suppress(KeyValueStoreError):
            self._store.post(f"spbench/words/{self._rank}", failure.model_dump_json())
            return True
        return False

    def collect(self, wait_s: float = WAIT_S) -> list[Sample]:
        """The notices that other ranks have left by then, in the order of ranks."""
        failures: dict[int, Sample] = {}

        def all_left() -> bool:
            for rank in self.without_notice([*failures.values()]):
                if (text := self._read("words", rank)) is not None:
                    failures[rank] = Sample.model_validate_json(text)
            return not self.without_notice([*failures.values()])

        until(all_left, wait_s)
        return [failures[rank] for rank in sorted(failures)]

    def without_notice(self, failures: Sequence[Sample]) -> list[int]:
        """The other ranks that are not among those that failed."""
        others = set(range(len(self._hosts))) - {self._rank}
        return sorted(others - {failure.rank for failure in failures})

    def gone(self, left: Sequence[Sample]) -> list[int]:
        """Ranks of this host whose process has ended, but for those that left a notice."""
        told, host = {sample.rank for sample in left}, self._hosts[self._rank]
        of_ranks = enumerate(zip(self._hosts, self._pids, strict=False))
        ended = [rank for rank, (where, pid) in of_ranks if where == host and _has_ended(pid)]
        return [rank for rank in ended if rank not in told]

    def another_failed(self) -> bool:
        """Whether this rank was interrupted since another has failed, or has died."""
        left = self.collect(0.5)
        return any(sample.status != "interrupted" for sample in left) or bool(self.gone(left))

    def blame(self, mine: Sample | None, left: Sequence[Sample], hang_s: float) -> dict[str, Any]:
        """Fields of a launch's result that say who is to blame if all failures are broken
        connections. ``mine``: this rank's own notice, None if it was interrupted; ``left``: all."""
        if any(sample.status not in ("interrupted", "comm_error") for sample in left):
            return {}
        if silent := self.silent_hosts():
            why = f"{silent[0]} does not answer any more, {hang_s:g} s after its last transfer"
            return {"lost": True, "why": why}
        stuck = self.without_notice(left)
        timed_out = mine is not None and "imed out" in mine.reason
        if died := self.gone(left) or ([] if timed_out or mine is None else stuck):
            return {"rank": died[0], "exitcode": None, "why": DIED}
        if not stuck or not timed_out:
            return {}
        where = f"rank {stuck[0]} did not come along while the others waited for it"
        return {"hung": where, "hung_ranks": stuck, "still_s": hang_s}

    def why_not_joined(self, mine: Sample, within_s: float) -> str:
        """Which rank did not join the process group, or why none could, in a sentence."""
        self.leave(mine)
        others = self.collect()
        for sample in (other for other in others if other.status != "comm_error"):
            return f"{self._name(sample.rank)} could not join the others: {sample.reason}"
        if stuck := self.without_notice(others):
            names = ", ".join(map(self._name, stuck))
            return f"{names} did not join the others within {within_s:g} s (--hang-after)"
        return (
            f"{self._name(self._rank)} did not reach the others: {mine.reason}; GLOO_SOCKET_IFNAME "
            f"or NCCL_SOCKET_IFNAME names the interface that leads to them"
        )

    def _name(self, rank: int) -> str:
        return f"rank {rank} ({self._hosts[rank]})"

    def silent_hosts(self) -> list[str]:
        """Hosts whose heartbeat has stopped. Takes a few seconds."""
        others = [rank for rank in self._firsts if rank != self._rank]
        if not others:
            return []
        before = {rank: self._read("beat", rank) for rank in others}
        time.sleep(2.5 * BEAT_S)
        return [self._hosts[rank] for rank in others if self._read("beat", rank) == before[rank]]

    def _read(self, name: str, rank: int) -> str | None:
        with contextlib.suppress(KeyValueStoreError):
            return self._store.read(f"spbench/{name}/{rank}")
        return None

    def _beat(self) -> None:
        with contextlib.suppress(KeyValueStoreError):
            store = self._store.another()
            for number in itertools.count():
                store.post(f"spbench/beat/{self._rank}", f"{number}")
                time.sleep(BEAT_S)


def _has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
