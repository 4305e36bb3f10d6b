"""Ranks that somebody else started: by torchrun, srun, or any launcher that sets RANK.

Each runs the same command. After a roll call they form one process group and go through the same
cases in step; rank 0 alone reads and writes the results directory. When the group breaks, rank 0
finds out which rank broke it, as far as the others could still leave a notice.
"""

import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import click

from spbench.errors import SOME_FAILED, UNFIT, Failure
from spbench.launch.interfaces import why_gloo_cannot_listen
from spbench.launch.launcher import LaunchResult
from spbench.results.hand_over import Sample, sample_path, write_atomically
from spbench.results.temporary import sweep, temporary_folder
from spbench.text import first_line
from spbench.workload.case import Job

if TYPE_CHECKING:
    from spbench.comm.group import Group
    from spbench.worker.fault_injection import Fault

OTHERS_NOTICE_S = 12.0
"""How long a rank stays that only lost a connection: when it ends, torchrun ends rank 0."""


def joined_ranks(environ: Mapping[str, str] = os.environ) -> int | None:
    """How many ranks the launch has that this process is one of; None outside a launch. Raises
    Failure that names the variable whose value is not such a number."""
    if "RANK" not in environ or "WORLD_SIZE" not in environ:
        return None
    size = _number(environ, "WORLD_SIZE", 1, None)
    _number(environ, "RANK", 0, size - 1)
    local = _number(environ, "LOCAL_WORLD_SIZE", 1, size) if "LOCAL_WORLD_SIZE" in environ else size
    if "LOCAL_RANK" in environ:
        _number(environ, "LOCAL_RANK", 0, local - 1)
    return size


def _number(environ: Mapping[str, str], name: str, least: int, most: int | None) -> int:
    text = environ[name]
    if text.isascii() and text.isdecimal() and len(text) < 10:
        number = int(text)
        if number >= least and (most is None or number <= most):
            return number
    works = f"from {least} on" if most is None else f"from {least} to {most}"
    raise Failure(
        f"{name}={text!r} is not a whole number {works}; torchrun or srun set it, "
        f"or unset RANK and WORLD_SIZE to start ranks here"
    )


def meeting_place(environ: Mapping[str, str]) -> tuple[str, int]:
    """Where the ranks meet. Raises Failure that names the variable that is missing or damaged."""
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if not environ.get(name):
            raise Failure(
                f"rank {environ['RANK']}: {name} is not set; export rank 0's host as MASTER_ADDR "
                f"and a free port there as MASTER_PORT, as torchrun does, or unset RANK and "
                f"WORLD_SIZE to start ranks here",
                UNFIT,
            )
    return environ["MASTER_ADDR"], _number(environ, "MASTER_PORT", 1, 65535)


@final
class JoinedLauncher:
    """'Starts' a job by taking part in it. After an error the group is lost, for good."""

    def __init__(
        self,
        job: Job,
        fault: "Fault | None" = None,
        *,
        asked: str | None = None,
        decide: Callable[[], dict[str, str]] = dict,
    ) -> None:
        """``asked``: what all ranks must have been asked for, by default the job. ``decide``: for
        rank 0 alone, the variables to set in all ranks. Raises Failure where they cannot join."""
        from spbench.launch.failure_notices import FailureNotices
        from spbench.launch.joining import call_roll, join, keep_stdout

        keep_stdout()
        if (why_not := why_gloo_cannot_listen(job.device)) is not None:
            raise Failure(f"rank {os.environ['RANK']}: {why_not}", UNFIT)
        rank = int(os.environ["RANK"])
        self._fault, self._lost = fault, False
        if fault is not None:
            fault.strike(rank, "init")
        asked = asked or job.model_dump_json()
        roll, store = call_roll(job, meeting_place(os.environ), asked, decide)
        self.hosts: list[str] = roll.hosts
        self._notices = FailureNotices(store, rank, roll.hosts, roll.pids)
        job = job.model_copy(update={"environment": roll.environment})
        self._group: Group = join(job, rank, self._notices, fault)

    @property
    def is_first(self) -> bool:
        return self._group.rank == 0

    def follow(self) -> None:
        """Takes part in each job that rank 0 sends; for every other rank, which writes nothing."""
        sweep()
        with temporary_folder("spbench-rank-") as folder:
            try:
                while text := self._next_job():
                    self.run(Job.model_validate_json(text), folder)
            except KeyboardInterrupt:
                self._notices.leave(Sample(rank=self._group.rank, status="interrupted"))
                raise
        self._leave()

    def _next_job(self) -> str:
        try:
            return self._group.gather_text("")[0]
        except Exception as error:
            first = f"rank 0 ({self.hosts[0]})"
            raise Failure(
                f"{first} does not answer any more: {first_line(error)}", UNFIT
            ) from error

    def run(self, job: Job, folder: Path) -> LaunchResult:
        from spbench.worker.observer import Observer
        from spbench.worker.rank_process import failure, work

        if self._lost:
            return LaunchResult(ok=False, group_lost=True)
        try:
            if self.is_first:
                self._group.gather_text(job.model_dump_json(by_alias=True, exclude_defaults=True))
            observer = Observer(group=self._group, fault=self._fault)
            texts = self._group.gather_text(work(job, self._group, observer, folder))
        except Exception as error:
            return self._broken(job, folder, failure(error, self._group.rank, self._fault))
        except KeyboardInterrupt:
            self._lost = True  # the others are in the midst of something
            # torchrun sends it to all ranks when one has failed; then that failure is the cause.
            if self.is_first and self._notices.another_failed():
                return self._broken(job, folder, None)
            raise
        if self.is_first:
            _write_samples(folder, dict(enumerate(texts)))
        return LaunchResult(ok=True, hosts=self._hosts_by_rank())

    def close(self) -> None:
        """Tells the other ranks that there are no more jobs. All results are written by now: one
        that has ended early is only told of."""
        if self._lost:
            return
        self._lost = True
        try:
            self._group.gather_text("")
            self._leave()
        except Exception as error:
            gone = self._notices.gone([])
            who = f"rank {gone[0]}" if gone else "a rank"
            why = f"{who} ended before it was told to: {first_line(error)}"
            click.echo(f"{why}; what was measured is kept", err=True)

    def _leave(self) -> None:
        if self._fault is not None:
            self._fault.strike(self._group.rank, "teardown")
        self._group.close()

    def _broken(self, job: Job, folder: Path, mine: Sample | None) -> LaunchResult:
        """Rank 0 gathers how all ranks failed; every other leaves a notice and ends."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the row is to be written first
        self._lost = True
        if not self.is_first:
            if mine is not None:
                click.echo(f"Error: rank {mine.rank}: {mine.status}: {mine.reason}", err=True)
                if self._notices.leave(mine) and mine.status == "comm_error":
                    time.sleep(OTHERS_NOTICE_S)
            os._exit(SOME_FAILED)
        left = [*([] if mine is None else [mine]), *self._notices.collect()]
        failures = [sample for sample in left if sample.status != "interrupted"]
        _write_samples(folder, {sample.rank: sample.model_dump_json() for sample in failures})
        blame = self._notices.blame(mine, left, job.hang_s)
        known: dict[str, Any] = {"rank": 0, "exitcode": 1, "hosts": self._hosts_by_rank()} | blame
        return LaunchResult(ok=False, **known)

    def _hosts_by_rank(self) -> dict[int, str]:
        return dict(enumerate(self.hosts)) if len(set(self.hosts)) > 1 else {}


def _write_samples(folder: Path, texts: Mapping[int, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for rank, text in texts.items():
        write_atomically(sample_path(folder, rank), text)
