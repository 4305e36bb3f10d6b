"""What joined ranks leave for rank 0 when their group has broken: last words, and signs of life.

They share no launcher that could see them die, only the store over which they met. It outlives
the group: torchrun keeps it, or rank 0 does.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Self, final

from spbench.results.sample import Sample

if TYPE_CHECKING:
    from spbench.comm.kv_store import KeyValueStore

BEAT_S = 2.0
WAIT_S = 3.0
"""For the last words of ranks that notice a little later."""


@final
class Notices:
    """One rank's access. Ranks on ``hosts`` of their own tell by a thread that their host lives."""

    def __init__(self, board: KeyValueStore, rank: int, hosts: Sequence[str]) -> None:
        self._board, self._rank, self.hosts = board, rank, hosts
        first_there = hosts.index(hosts[rank]) == rank
        if first_there and len(set(hosts)) > 1:
            threading.Thread(target=self._beat, args=(board.another(),), daemon=True).start()

    @classmethod
    def over(cls, environ: Mapping[str, str], rank: int, hosts: Sequence[str]) -> Self | None:
        """Over the store that the variables of the launch name; None if it cannot be had."""
        from spbench.comm.kv_store import KeyValueStore, KeyValueStoreError

        try:
            board = KeyValueStore(environ["MASTER_ADDR"], int(environ["MASTER_PORT"]), wait_s=10.0)
            return cls(board, rank, hosts)
        except (KeyValueStoreError, KeyError, ValueError):
            return None

    def leave(self, words: Sample) -> None:
        """Best effort: who cannot be reached is told nothing."""
        from spbench.comm.kv_store import KeyValueStoreError

        try:
            self._board.post(f"spbench/words/{self._rank}", words.model_dump_json())
        except KeyValueStoreError:
            return

    def words(self, wait_s: float = WAIT_S) -> list[Sample]:
        """Of all other ranks that have left any by then."""
        others = [rank for rank in range(len(self.hosts)) if rank != self._rank]
        deadline = time.monotonic() + wait_s
        found: dict[int, Sample] = {}
        while len(found) < len(others):
            for rank in others:
                text = self._read(f"spbench/words/{rank}")
                if text is not None:
                    found[rank] = Sample.model_validate_json(text)
            if time.monotonic() >= deadline:
                break
            time.sleep(0.1)
        return [found[rank] for rank in sorted(found)]

    def silent_hosts(self) -> list[str]:
        """Hosts whose sign of life does not change any more. Takes a few seconds."""
        firsts = [rank for rank, host in enumerate(self.hosts) if self.hosts.index(host) == rank]
        if len(firsts) < 2:
            return []
        before = {rank: self._read(f"spbench/beat/{rank}") for rank in firsts}
        time.sleep(2.5 * BEAT_S)
        return [
            self.hosts[rank]
            for rank in firsts
            if rank != self._rank and self._read(f"spbench/beat/{rank}") == before[rank]
        ]

    def _read(self, name: str) -> str | None:
        from spbench.comm.kv_store import KeyValueStoreError

        try:
            return self._board.read(name)
        except KeyValueStoreError:
            return None

    def _beat(self, board: KeyValueStore) -> None:
        from spbench.comm.kv_store import KeyValueStoreError

        number = 0
        while True:
            try:
                board.post(f"spbench/beat/{self._rank}", f"{os.getpid()} {number}")
            except KeyValueStoreError:
                return
            number += 1
            time.sleep(BEAT_S)
