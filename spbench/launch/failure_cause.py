"""A row's status and one line of why, from how a launch ended and what its ranks wrote.

The first cause is blamed, not the loudest: a rank that loses its connection to another one mostly
reports the echo of that one's failure.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence

from spbench.launch.launcher import Deadlines, LaunchResult
from spbench.results.sample import RowStatus, Sample
from spbench.text import signal_name

TIME_IS_UP = "the time of all launches together was up; --max-time sets it"


def status_and_cause(
    result: LaunchResult, samples: Sequence[Sample], processes: int, deadlines: Deadlines
) -> tuple[RowStatus, str]:
    """``deadlines``: those that this launch had. The cause of ``ok`` is blank."""
    if result.group_lost:
        return "skipped", "an earlier case broke the process group that was joined"
    failed = [sample for sample in samples if sample.status != "ok"]
    silent = sorted(set(range(processes)) - {sample.rank for sample in samples})
    only_echoes = all(sample.status == "comm_error" for sample in failed)
    if only_echoes and (ended := _ended_by_us(result, deadlines)) is not None:
        return ended
    died_silently = not result.ok and (result.rank is None or result.rank in silent)
    if failed and not (only_echoes and died_silently):
        first = min(failed, key=_order_of_blame)
        return first.status, f"{_name(first.rank, result)}: {first.reason}"
    if not result.ok or silent:
        return _death(result, silent)
    for sample in samples:
        if sample.sent_by_phase is not None and sample.sent_by_phase != sample.predicted_by_phase:
            return "wrong_result", (
                f"{_name(sample.rank, result)} sent {sample.sent_by_phase}, "
                f"predicted {sample.predicted_by_phase}"
            )
    return "ok", ""


def rank_to_blame(result: LaunchResult, samples: Sequence[Sample]) -> int | None:
    """The rank in whose log to look; None if no rank is to blame."""
    failed = [sample for sample in samples if sample.status != "ok"]
    if failed and not all(sample.status == "comm_error" for sample in failed):
        return min(failed, key=_order_of_blame).rank
    if result.hung_ranks:
        return result.hung_ranks[0]
    return (
        result.rank if result.rank is not None else next((sample.rank for sample in failed), None)
    )


def _name(rank: int, result: LaunchResult) -> str:
    """With its host, if there are several nodes."""
    host = result.hosts.get(rank)
    return f"rank {rank} ({host})" if host else f"rank {rank}"


def _ended_by_us(result: LaunchResult, deadlines: Deadlines) -> tuple[RowStatus, str] | None:
    """The status of a launch that had to be ended; None for any other."""
    if result.lost:
        return "comm_error", result.why
    if result.hung:
        flag = "--hang-after" if result.still_s >= deadlines.hang_s else "--timeout"
        return "hang", (
            f"{result.hung}; nothing moved for {result.still_s:.0f} s ({flag} sets "
            f"the limit). Their stacks are in their logs"
        )
    if result.timed_out:
        return "timeout", f"not done after {deadlines.launch_s:g} s; --timeout sets the deadline"
    return None


def _order_of_blame(sample: Sample) -> tuple[bool, float]:
    failed_at_s = sample.failed_at_s if sample.failed_at_s is not None else float("inf")
    return sample.status == "comm_error", failed_at_s


def _death(result: LaunchResult, silent: Sequence[int]) -> tuple[RowStatus, str]:
    """The status of a launch in which a process ended without a word."""
    if result.ok:
        return "crash", f"{_name(silent[0], result)} left no result"
    name = "the launcher" if result.rank is None else _name(result.rank, result)
    if result.exitcode is None:
        return "crash", f"the ranks could not be started: {result.why or 'no reason was given'}"
    if result.exitcode >= 0:
        more = f": {result.why}" if result.why else " and left no result"
        return "crash", f"{name} ended with exit code {result.exitcode}{more}"
    if result.starved and result.exitcode == -signal.SIGKILL:
        return "host_oom", f"{name} was killed by the kernel, which was out of memory"
    return "crash", f"{name} was ended by {signal_name(-result.exitcode)}"
