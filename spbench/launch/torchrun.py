"""Ranks that somebody else started: by torchrun, srun, or any launcher that sets RANK.

Each runs the same command. They meet (``meeting.py``), form one process group and go through the
same cases in step; rank 0 alone reads and writes the results directory. A failure of one ends them
all: rank 0 writes the row with what the others could still say, and torchrun has the first error.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, final

import click

from spbench.errors import SOME_FAILED, UNFIT, Failure
from spbench.launch.interfaces import why_gloo_cannot_listen
from spbench.launch.launcher import LaunchResult, is_cause
from spbench.results.hand_over import Sample, sample_path, write_atomically
from spbench.results.temporary import sweep, temporary_folder
from spbench.text import first_line, listed
from spbench.workload.case import Job

if TYPE_CHECKING:
    from spbench.comm.group import Group
    from spbench.launch.meeting import Meeting
    from spbench.worker.fault_injection import Fault

ECHO_S = 12.0
"""How long a rank stays that only lost a connection: when it ends, torchrun ends rank 0."""
NCCL_S = 12.0
"""So much later than gloo a rank gives up itself: NCCL may wait for ever."""


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


def keep_stdout() -> None:
    """Sends what libraries write into file descriptor 1, as NCCL does, to stderr from here on.
    Only ``sys.stdout``, where results go, still leads to stdout, if it has led there."""
    try:
        if sys.stdout.fileno() != 1:
            return
    except (OSError, ValueError, AttributeError):
        return
    sys.stdout.flush()
    # A second descriptor of what stdout was; number 1 then leads where 2 does.
    mine = os.fdopen(os.dup(1), "w", 1, encoding=sys.stdout.encoding, errors=sys.stdout.errors)
    os.dup2(2, 1)
    sys.stdout = mine


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
        """Joins the other ranks.

        Parameters
        ----------
        job:
            The first job; its ``hang_s`` is how long ranks wait for each other, now and later.
        fault:
            What is planted in a rank.
        asked:
            What all ranks must have been asked for; by default the job.
        decide:
            Called on rank 0 alone: the variables to set in all ranks.

        Raises
        ------
        Failure
            Where the ranks cannot join: who is missing, or what differs.
        """
        from spbench.launch.meeting import meet

        keep_stdout()
        if (why_not := why_gloo_cannot_listen(job.device)) is not None:
            raise Failure(f"rank {os.environ['RANK']}: {why_not}", UNFIT)
        self._fault, self._lost = fault, False
        if fault is not None:
            fault.strike(int(os.environ["RANK"]), "init")
        where = meeting_place(os.environ)
        self._meeting, roll = meet(where, job.hang_s, asked or job.model_dump_json(), decide)
        self.hosts: list[str] = roll.hosts
        job = job.model_copy(update={"environment": roll.environment})
        self._group: Group = _join(job, self._meeting, fault)

    @property
    def is_first(self) -> bool:
        return self._group.rank == 0

    def follow(self) -> None:
        """Takes part in each job that rank 0 sends; for every other rank, which writes nothing."""
        sweep()
        with temporary_folder("spbench-rank-") as folder:
            while text := self._next_job():
                self.run(Job.model_validate_json(text), folder)
        self._leave()

    def _next_job(self) -> str:
        try:
            return self._group.gather_text("")[0]
        except Exception as error:
            why = f"rank 0 ({self.hosts[0]}) does not answer any more: {first_line(error)}"
            raise Failure(why, UNFIT) from error

    def run(self, job: Job, folder: Path) -> LaunchResult:
        """Takes part in a job; on rank 0 the files of all ranks are in ``folder`` then."""
        from torch.distributed.elastic.multiprocessing.errors import record

        from spbench.worker.rank_process import failure

        if self._lost:
            return LaunchResult(ok=False, group_lost=True)
        try:
            texts = record(self._work)(job, folder)  # which keeps an error for torchrun's report
        except Exception as error:
            return self._broken(folder, failure(error, self._group.rank, self._fault))
        except KeyboardInterrupt:
            self._lost = True  # the others are in the midst of something
            # torchrun ends all ranks when one has failed; then that failure is the cause.
            if self.is_first and any(map(is_cause, self._meeting.failures(0.5))):
                return self._broken(folder, None)
            raise
        if self.is_first:
            _write_samples(folder, dict(enumerate(texts or [])))
        return LaunchResult(ok=True, hosts=self._hosts_by_rank())

    def _work(self, job: Job, folder: Path) -> list[str]:
        """What every rank's file of the job will hold."""
        from spbench.worker.observer import Observer
        from spbench.worker.rank_process import work

        if self.is_first:
            self._group.gather_text(job.model_dump_json(by_alias=True, exclude_defaults=True))
        observer = Observer(group=self._group, fault=self._fault)
        return self._group.gather_text(work(job, self._group, observer, folder))

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
            why = f"a rank ended before it was told to: {first_line(error)}"
            click.echo(f"{why}; what was measured is kept", err=True)

    def _leave(self) -> None:
        if self._fault is not None:
            self._fault.strike(self._group.rank, "teardown")
        self._group.close()

    def _broken(self, folder: Path, mine: Sample | None) -> LaunchResult:
        """Rank 0 gathers how the ranks failed; every other says how it did, and ends."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the row is to be written first
        self._lost = True
        if not self.is_first:
            if mine is not None:
                click.echo(f"Error: rank {mine.rank}: {mine.status}: {mine.reason}", err=True)
                self._meeting.leave(mine)
                if not is_cause(mine):
                    time.sleep(ECHO_S)
            os._exit(SOME_FAILED)
        failures = [*([] if mine is None else [mine]), *self._meeting.failures()]
        _write_samples(folder, {failed.rank: failed.model_dump_json() for failed in failures})
        hosts = self._hosts_by_rank()
        # Neither rank 0, which gathers, nor one that has told how it failed.
        silent = sorted(set(range(len(self.hosts))) - {0} - {failed.rank for failed in failures})
        if any(map(is_cause, failures)) or not silent:
            return LaunchResult(ok=False, rank=0, exitcode=1, hosts=hosts)
        names = listed([f"rank {rank} ({self.hosts[rank]})" for rank in silent])
        why = f"{names} left no word: dead, hung or out of reach; what started the ranks says more"
        return LaunchResult(ok=False, rank=silent[0], lost=True, why=why, hosts=hosts)

    def _hosts_by_rank(self) -> dict[int, str]:
        return dict(enumerate(self.hosts)) if len(set(self.hosts)) > 1 else {}


def _join(job: Job, meeting: "Meeting", fault: "Fault | None") -> "Group":
    """The process group. Raises Failure that names the rank that could not join it, or says how to
    make the others reachable, within ``hang_s``."""
    from spbench.worker.rank_process import connect, failure

    def give_up() -> None:
        click.echo(f"Error: {meeting.why_not_joined('it still waits')}", err=True)
        os._exit(UNFIT)

    # NCCL's own wait has no end that Python can catch: a thread ends this process from beside it.
    watch = threading.Timer(job.hang_s + NCCL_S, give_up)
    watch.daemon = True
    watch.start()
    try:
        return connect(job, patience_s=job.hang_s)
    except Exception as error:
        mine = failure(error, meeting.rank, fault)
        meeting.leave(mine)
        if is_cause(mine):
            raise
        raise Failure(meeting.why_not_joined(mine.reason), UNFIT) from error
    finally:
        watch.cancel()


def _write_samples(folder: Path, texts: Mapping[int, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for rank, text in texts.items():
        write_atomically(sample_path(folder, rank), text)
