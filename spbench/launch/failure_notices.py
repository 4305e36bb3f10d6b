"""What ranks that torchrun started leave for rank 0 when their process group has broken.

No launcher of spbench sees these ranks die; they share only the key-value store over which they
met. It outlives the group: torchrun keeps it, or rank 0 does. A rank that fails leaves its cause
there, and one rank of each host shows by a heartbeat that the host lives.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Self, final

from spbench.comm.kv_store import KeyValueStore, KeyValueStoreError
from spbench.results.sample import Sample

BEAT_S = 2.0
WAIT_S = 3.0
"""For the notices of ranks that fail a little later."""
POLL_S = 0.1


@final
class FailureNotices:
    """One rank's access to the store."""

    def __init__(self, store: KeyValueStore | None, rank: int, hosts: Sequence[str]) -> None:
        """``hosts`` of all ranks. Without a store nothing is left and nothing is read."""
        self._store, self._rank, self._hosts = store, rank, hosts
        is_first_of_host = hosts.index(hosts[rank]) == rank
        if store is not None and is_first_of_host and len(set(hosts)) > 1:
            threading.Thread(target=self._beat, args=(store.another(),), daemon=True).start()

    @classmethod
    def connect(cls, environ: Mapping[str, str], rank: int, hosts: Sequence[str]) -> Self:
        """Over the store that MASTER_ADDR and MASTER_PORT name, if it answers."""
        with contextlib.suppress(KeyValueStoreError, KeyError, ValueError):
            port = int(environ["MASTER_PORT"])
            return cls(KeyValueStore(environ["MASTER_ADDR"], port, wait_s=10.0), rank, hosts)
        return cls(None, rank, hosts)

    @property
    def is_connected(self) -> bool:
        return self._store is not None

    def leave(self, failure: Sample) -> None:
        """Leaves this rank's notice, if the store still answers."""
        with contextlib.suppress(KeyValueStoreError):
            if self._store is not None:
                self._store.post(f"spbench/words/{self._rank}", failure.model_dump_json())

    def collect(self, wait_s: float = WAIT_S) -> list[Sample]:
        """The notices that other ranks have left by then."""
        missing = {rank for rank in range(len(self._hosts)) if rank != self._rank}
        deadline = time.monotonic() + wait_s
        failures = []
        while missing and self._store is not None:
            for rank in sorted(missing):
                text = self._read(f"spbench/words/{rank}")
                if text is not None:
                    failures.append(Sample.model_validate_json(text))
                    missing.discard(rank)
            if time.monotonic() >= deadline:
                break
            time.sleep(POLL_S)
        return sorted(failures, key=lambda failure: failure.rank)

    def silent_hosts(self) -> list[str]:
        """Hosts whose heartbeat has stopped. Takes a few seconds."""
        firsts = [rank for rank, host in enumerate(self._hosts) if self._hosts.index(host) == rank]
        if len(firsts) < 2 or self._store is None:
            return []
        before = {rank: self._read(f"spbench/beat/{rank}") for rank in firsts}
        time.sleep(2.5 * BEAT_S)
        return [
            self._hosts[rank]
            for rank in firsts
            if rank != self._rank and self._read(f"spbench/beat/{rank}") == before[rank]
        ]

    def _read(self, key: str) -> str | None:
        with contextlib.suppress(KeyValueStoreError):
            return None if self._store is None else self._store.read(key)
        return None

    def _beat(self, store: KeyValueStore) -> None:
        number = 0
        with contextlib.suppress(KeyValueStoreError):
            while True:
                store.post(f"spbench/beat/{self._rank}", f"{os.getpid()} {number}")
                number += 1
                time.sleep(BEAT_S)
