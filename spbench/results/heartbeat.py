"""The heartbeat of a rank: a small file that shows the parent how far the rank has come.

The rank writes into mapped memory (no system call, so that a timed step may do it), the parent
reads the file. A heartbeat that stands still does not prove a fault, but if all heartbeats of a
launch stand still for long, the launch hangs, and the rank that got least far shows where.
"""

import contextlib
import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import final

from spbench.results.temporary import IN_MEMORY, temporary_folder

LAYOUT = struct.Struct("<QQQQQ64s")
"""Process id, heartbeats, phases and steps begun, transfers since, the phase's name."""
OUTSIDE = ("starting", "joining", "leaving", "ended")
"""Phases without steps."""


def heartbeat_path(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.pulse"


@dataclass(frozen=True, kw_only=True)
class RankPosition:
    """How far a rank has come."""

    pid: int
    phase: str
    beats: int
    """Number of heartbeats: grows with whatever the rank does."""
    phases: int
    """Phases begun so far."""
    steps: int
    """Steps begun so far, the gate's included."""
    transfers: int
    """Transfers begun since the last step began, and meetings of all ranks."""

    @property
    def ended(self) -> bool:
        return self.phase == "ended"

    @property
    def progress(self) -> tuple[int, int, int]:
        """Grows as the rank goes on."""
        return self.phases, self.steps, self.transfers

    def __str__(self) -> str:
        if not self.steps or self.phase in OUTSIDE:
            return self.phase
        where = f"step {self.steps - 1} ({self.phase})"
        many = "transfer" if self.transfers == 1 else "transfers"
        return f"{where}, {self.transfers} {many} into it" if self.transfers else where


@final
class Heartbeat:
    """Writes the heartbeat of a rank. Without a path nothing is written."""

    def __init__(self, path: Path | None = None) -> None:
        self._beats = self._phases = self.steps = self._transfers = 0
        self._phase = b""
        self._memory: mmap.mmap | bytearray = bytearray(LAYOUT.size)
        if path is not None:
            with path.open("w+b", buffering=0) as file:
                # Where memory is full this raises; later, the map would end the rank by SIGBUS.
                file.write(bytes(LAYOUT.size))
                self._memory = mmap.mmap(file.fileno(), LAYOUT.size)
        self.phase("starting")

    def phase(self, name: str) -> None:
        self._phases, self._phase = self._phases + 1, name.encode()[:64]
        self.working()

    def step(self) -> None:
        """A step begins."""
        self.steps, self._transfers = self.steps + 1, 0
        self.working()

    def transfer(self) -> None:
        """A transfer begins, or the rank begins to wait for all ranks."""
        self._transfers += 1
        self.working()

    def working(self) -> None:
        """The rank is alive, whether it has begun anything new or not."""
        self._beats += 1
        counts = self._beats, self._phases, self.steps, self._transfers
        LAYOUT.pack_into(self._memory, 0, os.getpid(), *counts, self._phase)


@contextmanager
def heartbeat_folder(folder: Path) -> Iterator[Path]:
    """The folder of the heartbeats of the launch in ``folder``, while the launch lasts.

    It is in memory if the system has such a place, since writing to a disk may make a rank wait.
    The file ``pulses`` names it, not job.json, which ranks of older commits must understand.
    """
    where = IN_MEMORY if os.access(IN_MEMORY, os.W_OK) else None
    with temporary_folder("spbench-pulses-", where) as heartbeats:
        point_to_heartbeats(folder, heartbeats)
        yield heartbeats


def point_to_heartbeats(folder: Path, heartbeats: Path) -> None:
    (folder / "pulses").write_text(str(heartbeats), encoding="utf-8")


def find_heartbeats(folder: Path) -> Path | None:
    """The folder of the heartbeats of the launch in ``folder``; None: nobody reads them."""
    with contextlib.suppress(OSError):
        return Path((folder / "pulses").read_text(encoding="utf-8"))
    return None


def read_heartbeat(folder: Path, rank: int) -> RankPosition | None:
    """The rank's position; None if the rank has not begun."""
    try:
        pid, beats, phases, steps, transfers, phase = LAYOUT.unpack(
            heartbeat_path(folder, rank).read_bytes()
        )
    except (OSError, struct.error):
        return None
    text = phase.rstrip(b"\0").decode(errors="replace")
    return RankPosition(
        pid=pid, phase=text, beats=beats, phases=phases, steps=steps, transfers=transfers
    )
