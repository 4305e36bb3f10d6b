"""What starts ranks, as a sweep sees it, and how a launch ends."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pydantic import BaseModel

from spbench.workload.case import Job


@dataclass(frozen=True, kw_only=True)
class Deadlines:
    """When to give up a launch, a launch that stands still, and all launches together."""

    launch_s: float = 600.0
    hang_s: float = 180.0
    """The longest time in which no rank makes progress."""
    sweep_s: float = math.inf


class LauncherError(Exception):
    """No further launch would make sense here: why, and what would help."""


class LaunchResult(BaseModel):
    """How a launch ended, apart from what its ranks wrote."""

    ok: bool
    rank: int | None = None
    exitcode: int | None = None
    why: str = ""
    """Of a launch that did not come to be, or whose node was lost."""
    timed_out: bool = False
    hung: str = ""
    """Where its ranks stood when nothing moved any more; blank if it did not hang."""
    hung_ranks: list[int] = []
    """Those that got least far."""
    still_s: float = 0.0
    """How long nothing had moved when it was ended."""
    waited_s: float = 0.0
    """Of its time, for the turns of another launch to end."""
    turns: int = 0
    """That it took right behind one of another launch."""
    hosts: dict[int, str] = {}
    """Of several nodes: where each rank was."""
    lost: bool = False
    """A node does not answer."""
    starved: bool = False
    """The kernel killed a process for want of memory meanwhile."""
    stopped: bool = False
    """Somebody had its ranks ended: how they ended then is no cause."""
    group_lost: bool = False
    """An earlier job broke the process group that this one would have needed."""


class Launcher(Protocol):
    """Starts the ranks of one job after another."""

    def run(self, job: Job, folder: Path) -> LaunchResult:
        """Returns when every rank has ended; their files are then in ``folder``.

        Raises LauncherError where no launch is possible any more.
        """

    def close(self) -> None:
        """Ends whatever is still running."""
