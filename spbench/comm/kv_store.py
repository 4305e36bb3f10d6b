"""Where ranks and launchers meet: a file on one machine, a key-value store on several.

The store is shared by the launchers of several nodes, or by ranks that others have started.

Short texts by name over torch's TCP store; one process holds it, all read and write. It says who
is there, what is to be started and how it ended, and never carries what a strategy sends. It asks
nobody for a password: whoever reaches its port may read and write (docs/clusters.md).
"""

import errno
import ipaddress
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar, final

from torch.distributed import FileStore, TCPStore  # type: ignore[attr-defined]


@final
@dataclass(frozen=True, kw_only=True)
class MeetingFile:
    """A file through which ranks of one machine find each other: it listens on no port, and only
    their user can open its folder."""

    path: Path
    rank: int
    ranks: int

    def arguments(self, timeout: timedelta) -> dict[str, Any]:
        """What init_process_group takes in place of an address."""
        store = FileStore(str(self.path), self.ranks)
        store.set_timeout(timeout)
        return {"store": store, "rank": self.rank, "world_size": self.ranks}


POLL_S = 0.1

T = TypeVar("T")


class KeyValueStoreError(Exception):
    """The process that holds the store does not answer."""


@final
class KeyValueStore:
    """One connection to the store. A thread that must not wait for another has its own.

    Every method raises KeyValueStoreError.
    """

    def __init__(self, host: str, port: int, *, keeps: bool = False, wait_s: float = 60.0) -> None:
        """``keeps``: the store lives in this process, and listens at ``host`` alone if that is an
        address, at all of this machine's if it is a name. Port 0: any free one."""
        self.host, self._wait_s = host, wait_s
        with _named_errors():
            listener = _listener(host, port) if keeps else None
            self.port = listener.getsockname()[1] if listener else port
            self._store = TCPStore(
                host,
                self.port,
                is_master=keeps,
                timeout=timedelta(seconds=wait_s),
                wait_for_workers=False,
                multi_tenant=True,
                master_listen_fd=listener.detach() if listener else None,
            )

    def another(self) -> "KeyValueStore":
        """A second connection to the same store."""
        return KeyValueStore(self.host, self.port, wait_s=self._wait_s)

    def post(self, name: str, text: str) -> None:
        with _named_errors():
            self._store.set(name, text)

    def claim(self, name: str, text: str) -> str:
        """Posts the text unless there is one by this name already; the text there now."""
        with _named_errors():
            # It sets the text only where there is the expected one: blank stands for none.
            return self._store.compare_set(name, "", text).decode()

    def read(self, name: str) -> str | None:
        """The text, or None while nobody has posted it."""
        with _named_errors():
            # ``get`` alone would wait until somebody posts it.
            return self._store.get(name).decode() if self._store.check([name]) else None


def _listener(host: str, port: int) -> socket.socket:
    """A socket bound for torch, which would bind it to all addresses. So does a name, which others
    may resolve to another address than we do, and an address that is translated on the way."""
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except ValueError:
        pass
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            raise
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    return socket.create_server(("", port), family=family, dualstack_ipv6=both)


@contextmanager
def _named_errors() -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError, ValueError) as error:  # torch's DistError is a RuntimeError
        raise KeyValueStoreError(str(error).strip().split("\n")[0]) from None


def until(question: Callable[[], T], within_s: float) -> T:
    """The first answer that is true, or the one at the end of the time."""
    deadline_s = time.monotonic() + within_s
    while not (answer := question()) and time.monotonic() < deadline_s:
        time.sleep(POLL_S)
    return answer


def in_time(work: Callable[[], T], within_s: float) -> T | None:
    """What ``work`` returns or raises; None if it is stuck, as in a store that a stopped process
    holds. It is left behind then, in a thread that ends with the process."""
    results: queue.Queue[T | Exception] = queue.Queue()

    def run() -> None:
        try:
            results.put(work())
        except Exception as error:
            results.put(error)

    threading.Thread(target=run, daemon=True).start()
    try:
        result = results.get(timeout=within_s)
    except queue.Empty:
        return None
    if isinstance(result, Exception):
        raise result
    return result
