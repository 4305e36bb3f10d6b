"""Where a rank is, in a small file that the parent can look at: the rank's sign of life.

The rank writes into mapped memory (no system call, so that a timed step may do it), the parent
reads the file. A pulse that does not change is no proof of a fault, but where none of a launch's
changes for long, the launch hangs, and the rank that got least far is where to look.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import final

LAYOUT = struct.Struct("<QQQQQ64s")
"""Process id, signs of life, phases and steps begun, transfers since, the phase's name."""
IN_MEMORY = Path("/dev/shm")
OUTSIDE = ("starting", "joining", "leaving", "ended")
"""Without steps."""


def heartbeat_path(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.pulse"


@dataclass(frozen=True, kw_only=True)
class RankPosition:
    """How far a rank has come."""

    pid: int
    phase: str
    beats: int
    """Grows with whatever the rank does."""
    phases: int
    """Begun so far."""
    steps: int
    """Begun so far, the gate's included."""
    transfers: int
    """Begun since the last step began; meetings of all ranks behind it count too."""

    @property
    def ended(self) -> bool:
        return self.phase == "ended"

    @property
    def progress(self) -> tuple[int, int, int]:
        """Larger: further."""
        return self.phases, self.steps, self.transfers

    def __str__(self) -> str:
        if not self.steps or self.phase in OUTSIDE:
            return self.phase
        where = f"step {self.steps - 1} ({self.phase})"
        many = "transfer" if self.transfers == 1 else "transfers"
        return f"{where}, {self.transfers} {many} into it" if self.transfers else where


@final
class Heartbeat:
    """The rank's side. Without a path nobody looks, and nothing is written."""

    def __init__(self, path: Path | None = None) -> None:
        self._beats = self._phases = self._steps = self._transfers = 0
        self._phase = b""
        self._memory: mmap.mmap | bytearray = bytearray(LAYOUT.size)
        if path is not None:
            with path.open("w+b") as file:
                file.truncate(LAYOUT.size)
                self._memory = mmap.mmap(file.fileno(), LAYOUT.size)
        self.phase("starting")

    def phase(self, name: str) -> None:
        self._phases, self._phase = self._phases + 1, name.encode()[:64]
        self._write()

    def step(self) -> None:
        """Another one begins."""
        self._steps, self._transfers = self._steps + 1, 0
        self._write()

    def working(self) -> None:
        """The rank is alive, and where it was."""
        self._write()

    def transfer(self) -> None:
        """A transfer begins."""
        self._transfers += 1
        self._write()

    def meeting(self) -> None:
        """The rank begins to wait for all ranks."""
        self.transfer()

    @property
    def steps(self) -> int:
        return self._steps

    def _write(self) -> None:
        self._beats += 1
        LAYOUT.pack_into(
            self._memory,
            0,
            os.getpid(),
            self._beats,
            self._phases,
            self._steps,
            self._transfers,
            self._phase,
        )


@contextmanager
def heartbeat_folder(folder: Path) -> Iterator[Path]:
    """Where the pulses of the launch in ``folder`` are, while it lasts.

    In memory if the system has such a place, since a page of a disk's file may make a rank wait. A
    file says where: it is no part of the job, which ranks of an older commit are to understand.
    """
    where = IN_MEMORY if os.access(IN_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="spbench-pulses-", dir=where) as pulses:
        point_to_heartbeats(folder, Path(pulses))
        yield Path(pulses)


def point_to_heartbeats(folder: Path, pulses: Path) -> None:
    (folder / "pulses").write_text(str(pulses), encoding="utf-8")


def find_heartbeats(folder: Path) -> Path | None:
    """Where the pulses of the launch in ``folder`` are to be; None: nobody looks at them."""
    with contextlib.suppress(OSError):
        return Path((folder / "pulses").read_text(encoding="utf-8"))
    return None


def read_heartbeat(folder: Path, rank: int) -> RankPosition | None:
    """None: the rank has not begun."""
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
