"""What ranks that torchrun started leave for rank 0 when their process group has broken.

No launcher of spbench sees these ranks die; they share only the key-value store over which they
met. It outlives the group: torchrun keeps it, or rank 0 does. A rank that fails leaves its cause
there, and one rank of each host shows by a heartbeat that the host lives.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping, Sequence
from typing import final

from spbench.comm.kv_store import KeyValueStore, KeyValueStoreError
from spbench.results.sample import Sample

BEAT_S = 2.0
WAIT_S = 3.0
"""For the notices of ranks that fail a little later."""
POLL_S = 0.1


@final
class FailureNotices:
    """One rank's access to the store. Without a store nothing is left and nothing is read."""

    def __init__(self, environ: Mapping[str, str], rank: int, hosts: Sequence[str]) -> None:
        """``environ``: MASTER_ADDR and MASTER_PORT name the store. ``hosts`` of all ranks."""
        self._rank, self._hosts = rank, hosts
        self._firsts = [hosts.index(host) for host in dict.fromkeys(hosts)]
        """The lowest rank of each host."""
        self._store: KeyValueStore | None = None
        with contextlib.suppress(KeyValueStoreError, KeyError, ValueError):
            port = int(environ["MASTER_PORT"])
            self._store = KeyValueStore(environ["MASTER_ADDR"], port, wait_s=10.0)
            if rank in self._firsts and len(self._firsts) > 1:
                beat = (self._store.another(),)
                threading.Thread(target=self._beat, args=beat, daemon=True).start()

    def leave(self, failure: Sample) -> bool:
        """Leaves this rank's notice; whether the store still answers."""
        with contextlib.suppress(KeyValueStoreError):
            if self._store is not None:
                self._store.post(f"spbench/words/{self._rank}", failure.model_dump_json())
                return True
        return False

    def collect(self, wait_s: float = WAIT_S) -> list[Sample]:
        """The notices that other ranks have left by then, in the order of ranks."""
        missing = set(range(len(self._hosts))) - {self._rank}
        deadline = time.monotonic() + wait_s
        failures: dict[int, Sample] = {}
        while self._store is not None and missing - failures.keys():
            for rank in missing - failures.keys():
                if (text := self._read("words", rank)) is not None:
                    failures[rank] = Sample.model_validate_json(text)
            if time.monotonic() >= deadline:
                break
            time.sleep(POLL_S)
        return [failures[rank] for rank in sorted(failures)]

    def without_notice(self, failures: Sequence[Sample]) -> list[int]:
        """Ranks but 0 that are not among those that failed; none if they could not tell."""
        silent = set(range(1, len(self._hosts))) - {failure.rank for failure in failures}
        return sorted(silent) if self._store is not None else []

    def silent_hosts(self) -> list[str]:
        """Hosts whose heartbeat has stopped. Takes a few seconds."""
        others = [rank for rank in self._firsts if rank != self._rank]
        if not others or self._store is None:
            return []
        before = {rank: self._read("beat", rank) for rank in others}
        time.sleep(2.5 * BEAT_S)
        return [self._hosts[rank] for rank in others if self._read("beat", rank) == before[rank]]

    def _read(self, name: str, rank: int) -> str | None:
        with contextlib.suppress(KeyValueStoreError):
            return self._store and self._store.read(f"spbench/{name}/{rank}")
        return None

    def _beat(self, store: KeyValueStore) -> None:
        number = 0
        with contextlib.suppress(KeyValueStoreError):
            while True:
                store.post(f"spbench/beat/{self._rank}", f"{number}")
                number += 1
                time.sleep(BEAT_S)
