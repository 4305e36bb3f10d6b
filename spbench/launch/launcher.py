"""What starts ranks, as a sweep sees it, and how a launch ends."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pydantic import BaseModel

from spbench.errors import UNFIT, Failure
from spbench.workload.case import Job


@dataclass(frozen=True, kw_only=True)
class Deadlines:
    """When to give up a launch, a launch that makes no progress, and all launches together."""

    launch_s: float = 600.0
    hang_s: float = 180.0
    """The longest time in which no rank makes progress."""
    sweep_s: float = math.inf


class LauncherError(Failure):
    """No further launch is possible: why, and what would help."""

    def __init__(self, message: str) -> None:
        super().__init__(message, UNFIT)


class LaunchResult(BaseModel):
    """How a launch ended, apart from what its ranks wrote. Also the content of ``exit.json``."""

    ok: bool
    rank: int | None = None
    """The first rank that failed, if one is known."""
    exitcode: int | None = None
    """How that rank's process ended, or the launcher's; a signal is negative."""
    why: str = ""
    """Why the ranks could not be started, or which node was lost."""
    timed_out: bool = False
    hung: str = ""
    """Where the ranks stood when they made no more progress; blank if the launch did not hang."""
    hung_ranks: list[int] = []
    """The ranks that got least far."""
    still_s: float = 0.0
    """Seconds without progress before the launch was ended."""
    waited_s: float = 0.0
    """Seconds that the ranks waited for the turns of another launch."""
    turns: int = 0
    """Turns that the launch took directly behind a turn of another."""
    hosts: dict[int, str] = {}
    """Each rank's host, if there are several nodes."""
    lost: bool = False
    """Whether a node does not answer any more."""
    starved: bool = False
    """Whether the kernel killed a process for want of memory meanwhile."""
    stopped: bool = False
    """Whether the launcher was asked to end the ranks: how they ended then is not a cause."""
    group_lost: bool = False
    """Whether an earlier job broke the process group that this one needed."""


class Launcher(Protocol):
    """Starts the ranks of one job after another."""

    def run(self, job: Job, folder: Path) -> LaunchResult:
        """Returns when every rank has ended; their files are then in ``folder``.

        Raises LauncherError if no further launch is possible.
        """

    def close(self) -> None:
        """Ends whatever is still running."""
