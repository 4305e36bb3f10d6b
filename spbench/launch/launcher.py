"""What starts ranks, as a sweep sees it; how a launch ends, and the status and cause of its row.

The first cause is blamed, not the loudest: a rank that loses its connection to another one mostly
reports the echo of that one's failure.
"""

import math
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pydantic import BaseModel

from spbench.errors import UNFIT, Failure
from spbench.results.hand_over import RowStatus, Sample
from spbench.text import signal_name
from spbench.workload.case import Job

TIME_IS_UP = "the time of all launches together was up; --max-time sets it"


@dataclass(frozen=True, kw_only=True)
class Deadlines:
    """When to give up a launch, a launch that makes no progress, and all launches together."""

    launch_s: float = 600.0
    hang_s: float = 180.0
    """The longest time in which no rank makes progress."""
    sweep_s: float = math.inf


class LauncherError(Failure):
    """No further launch is possible: why, and what would help."""

    code = UNFIT


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
    culprit: str = ""
    """The launcher or the fork server, where one of them ended, or was stopped by a signal."""
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


def status_and_cause(
    result: LaunchResult, samples: Sequence[Sample], job: Job
) -> tuple[RowStatus, str]:
    """The status of a launch of ``job``, and its cause; that of ``ok`` is blank.

    Where a rank tells a cause of its own, that is it. A rank that was killed leaves no file, and
    the others tell of a broken connection: its death is the cause (rank 1 "was ended by SIGKILL"),
    not their echoes. They are the cause only where no rank has died without a word.
    """
    if result.group_lost:
        return "skipped", "an earlier case broke the process group that was joined"
    failed = [sample for sample in samples if sample.status != "ok"]
    # Ranks without a file: killed, or ended before they could write.
    silent = sorted(set(range(job.processes)) - {sample.rank for sample in samples})
    if result.culprit and not failed and not silent:
        result = LaunchResult(ok=True)  # every rank had finished before
    tells_a_cause = any(sample.status != "comm_error" for sample in failed)
    if not tells_a_cause and (ended := _ended_by_us(result, job)) is not None:
        return ended
    died_silently = not result.ok and (result.rank is None or result.rank in silent)
    if tells_a_cause or (failed and not died_silently):
        first = min(failed, key=_order_of_blame)
        return first.status, f"{_name(first.rank, result)}: {first.reason}"
    if not result.ok or silent:
        return _death(result, silent)
    for sample in samples:
        for kind in ("phase", "axis"):
            sent, predicted = (getattr(sample, f"{n}_by_{kind}") for n in ("sent", "predicted"))
            if sent is not None and sent != predicted:
                name = _name(sample.rank, result)
                return "wrong_result", f"{name} sent {sent}, predicted {predicted}"
    return "ok", ""


def rank_to_blame(result: LaunchResult, samples: Sequence[Sample]) -> int | None:
    """The rank in whose log to look; None if no rank is to blame."""
    failed = [sample for sample in samples if sample.status != "ok"]
    if failed and not all(sample.status == "comm_error" for sample in failed):
        return min(failed, key=_order_of_blame).rank
    ranks = (*result.hung_ranks, result.rank, *(sample.rank for sample in failed))
    return next((rank for rank in ranks if rank is not None), None)


def _name(rank: int, result: LaunchResult) -> str:
    """With its host, if there are several nodes."""
    host = result.hosts.get(rank)
    return f"rank {rank} ({host})" if host else f"rank {rank}"


def _ended_by_us(result: LaunchResult, job: Job) -> tuple[RowStatus, str] | None:
    """The status of a launch that had to be ended; None for any other."""
    if result.lost:
        return "comm_error", result.why
    if result.hung:
        # A launch may be ended for either limit: the one that it reached is named.
        flag = "--hang-after" if result.still_s >= job.hang_s else "--timeout"
        still = f"nothing moved for {result.still_s:.0f} s ({flag} sets the limit)"
        stacks = "" if result.culprit else ". Their stacks are in their logs"
        return "hang", f"{result.hung}; {still}{stacks}"
    if result.timed_out:
        why = f"{result.why}; " if result.why else ""
        late = f"not done after {job.timeout_s:g} s; --timeout sets the deadline"
        return "timeout", f"{why}{late}"
    return None


def is_cause(failed: Sample) -> bool:
    """Whether it is more than the echo of another rank's failure."""
    return failed.status not in ("comm_error", "interrupted")


def _order_of_blame(sample: Sample) -> tuple[bool, float]:
    failed_at_s = sample.failed_at_s if sample.failed_at_s is not None else float("inf")
    # False is less than True: whoever failed by itself comes before all echoes, then the earliest.
    return sample.status == "comm_error", failed_at_s


def _death(result: LaunchResult, silent: Sequence[int]) -> tuple[RowStatus, str]:
    """The status of a launch in which a process ended without a word."""
    if result.ok:
        return "crash", f"{_name(silent[0], result)} left no result"
    name = result.culprit or "the launcher"
    name = name if result.rank is None else _name(result.rank, result)
    if result.exitcode is None and result.rank is not None:
        return "crash", f"{name} {result.why or 'left no result'}"
    if result.exitcode is None:
        return "crash", f"the ranks could not be started: {result.why or 'no reason was given'}"
    if result.exitcode >= 0:
        more = f": {result.why}" if result.why else " and left no result"
        return "crash", f"{name} ended with exit code {result.exitcode}{more}"
    if result.starved and result.exitcode == -signal.SIGKILL:
        return "host_oom", f"{name} was killed by the kernel, which was out of memory"
    return "crash", f"{name} was ended by {signal_name(-result.exitcode)}"
