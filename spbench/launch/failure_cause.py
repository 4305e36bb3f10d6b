"""What a launch's ending means: a row's status and one line of why, from what its ranks wrote.

The first cause is blamed, not the loudest: a rank that hears nothing more from another one is
mostly the echo of that one's failure.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence

from spbench.launch.launcher import Deadlines, LaunchResult
from spbench.results.sample import Sample, Status

TIME_IS_UP = "the time of all launches together was up; --max-time sets it"


def status_and_cause(
    ended: LaunchResult, samples: Sequence[Sample], processes: int, deadlines: Deadlines
) -> tuple[Status, str]:
    """``deadlines``: those that this launch had."""
    if ended.group_lost:
        return "skipped", "an earlier case broke the process group that was joined"
    failed = [sample for sample in samples if sample.status != "ok"]
    silent = sorted(set(range(processes)) - {sample.rank for sample in samples})
    only_echoes = all(sample.status == "comm_error" for sample in failed)
    if only_echoes and (stopped := _stopped(ended, deadlines)) is not None:
        return stopped
    died_silently = not ended.ok and (ended.rank is None or ended.rank in silent)
    if failed and not (only_echoes and died_silently):
        first = min(failed, key=_blame)
        return first.status, f"{who(first.rank, ended)}: {first.reason}"
    if not ended.ok or silent:
        return _death(ended, silent)
    for sample in samples:
        if sample.sent_by_phase is not None and sample.sent_by_phase != sample.predicted_by_phase:
            return "wrong_result", (
                f"{who(sample.rank, ended)} sent {sample.sent_by_phase}, "
                f"predicted {sample.predicted_by_phase}"
            )
    return "ok", ""


def who(rank: int, ended: LaunchResult) -> str:
    """rank 3, and of several machines on which."""
    host = ended.hosts.get(rank)
    return f"rank {rank} ({host})" if host else f"rank {rank}"


def rank_to_blame(ended: LaunchResult, samples: Sequence[Sample]) -> int | None:
    """The rank in whose log to look; None if no rank is to blame."""
    failed = [sample for sample in samples if sample.status != "ok"]
    if failed and not all(sample.status == "comm_error" for sample in failed):
        return min(failed, key=_blame).rank
    if ended.hung_ranks:
        return ended.hung_ranks[0]
    return ended.rank if ended.rank is not None else next((one.rank for one in failed), None)


def _stopped(ended: LaunchResult, deadlines: Deadlines) -> tuple[Status, str] | None:
    """Of a launch that somebody had to end."""
    if ended.lost:
        return "comm_error", ended.why
    if ended.hung:
        flag = "--hang-after" if ended.still_s >= deadlines.hang_s else "--timeout"
        return "hang", (
            f"{ended.hung}; nothing moved for {ended.still_s:.0f} s ({flag} sets "
            f"the limit). Their stacks are in their logs"
        )
    if ended.timed_out:
        return "timeout", (f"not done after {deadlines.launch_s:g} s; --timeout sets the deadline")
    return None


def _blame(sample: Sample) -> tuple[bool, float]:
    known = sample.failed_at_s if sample.failed_at_s is not None else float("inf")
    return sample.status == "comm_error", known


def _death(ended: LaunchResult, silent: Sequence[int]) -> tuple[Status, str]:
    if ended.ok:
        return "crash", f"{who(silent[0], ended)} left no result"
    name = "the launcher" if ended.rank is None else who(ended.rank, ended)
    if ended.exitcode is None:
        return "crash", f"the ranks could not be started: {ended.why or 'no reason was given'}"
    if ended.exitcode >= 0:
        said = f": {ended.why}" if ended.why else " and left no result"
        return "crash", f"{name} ended with exit code {ended.exitcode}{said}"
    if ended.starved and ended.exitcode == -signal.SIGKILL:
        return "host_oom", f"{name} was killed by the kernel, which was out of memory"
    known = {one.value: one.name for one in signal.Signals}
    number = -ended.exitcode
    return "crash", f"{name} was ended by {known.get(number, f'signal {number}')}"
