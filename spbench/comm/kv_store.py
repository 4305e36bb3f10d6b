"""A board that the launchers of several nodes, or ranks that somebody else started, write on.

Short texts by name, kept by one of them and read by all, over torch's TCP store. It carries who
is there, what is to be started and how it ended; never anything that a strategy sends.
"""

from __future__ import annotations

from datetime import timedelta
from typing import final

from torch.distributed import TCPStore  # type: ignore[attr-defined]

_kept: set[int] = set()
"""Ports of boards that this process keeps, or has kept."""


class KeyValueStoreError(Exception):
    """The one who keeps the board does not answer."""


@final
class KeyValueStore:
    """One connection to it. A thread that must not wait for another has its own."""

    def __init__(self, host: str, port: int, *, keeps: bool = False, wait_s: float = 60.0) -> None:
        """``keeps``: the store lives in this process. Port 0: any free one."""
        self.host, self._wait_s = host, wait_s
        self._store = self._open(port, keeps)
        self.port = self._store.port
        if keeps and port == 0 and self.port in _kept:
            # torch lists stores by port, and keeps a closed one's entry in the new one's place
            # unless that is opened by number: others in this process would not find it.
            del self._store
            self._store = self._open(self.port, keeps)
        if keeps:
            _kept.add(self.port)

    def _open(self, port: int, keeps: bool) -> TCPStore:
        try:
            return TCPStore(
                self.host,
                port,
                is_master=keeps,
                timeout=timedelta(seconds=self._wait_s),
                wait_for_workers=False,
                multi_tenant=True,
            )
        except (RuntimeError, ValueError) as error:  # torch's DistError is a RuntimeError
            raise KeyValueStoreError(str(error).strip().split("\n")[0]) from None

    def another(self) -> KeyValueStore:
        """A second connection to the same board."""
        return KeyValueStore(self.host, self.port, wait_s=self._wait_s)

    def post(self, name: str, text: str) -> None:
        """Raises KeyValueStoreError."""
        try:
            self._store.set(name, text)
        except RuntimeError as error:
            raise KeyValueStoreError(str(error)) from None

    def claim(self, name: str, text: str) -> str:
        """Posts it if nothing stands there; what stands there now. Raises KeyValueStoreError."""
        try:
            return self._store.compare_set(name, "", text).decode()
        except RuntimeError as error:
            raise KeyValueStoreError(str(error)) from None

    def read(self, name: str) -> str | None:
        """None while nobody has posted it. Raises KeyValueStoreError."""
        try:
            if not self._store.check([name]):
                return None
            return self._store.get(name).decode()
        except RuntimeError as error:
            raise KeyValueStoreError(str(error)) from None
