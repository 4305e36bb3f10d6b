"""Joining ranks that somebody else started: torchrun, srun, any launcher that sets RANK.

Each of those processes runs the same command. They form one process group and go through
the same cases in step; rank 0 alone reads and writes the results directory. When the group breaks
rank 0 finds out who broke it, as far as the others could still tell.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, final

from spbench.errors import Failure
from spbench.launch.cluster import difference, versions_here
from spbench.launch.failure_notices import Notices
from spbench.launch.launcher import LaunchResult
from spbench.results.sample import Sample, sample_path, write_atomically
from spbench.workload.case import Job

if TYPE_CHECKING:
    from spbench.comm.group import Group
    from spbench.worker.fault_injection import Fault


ECHO_S = 12.0
"""A rank that merely heard of a failure stays so long: its end would make torchrun end rank 0."""


def joined_ranks(environ: Mapping[str, str] = os.environ) -> int | None:
    """How many ranks the launch has that this process is one of; None outside a launch.

    Raises Failure that names the variable whose value is not such a number.
    """
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
        found = int(text)
        if found >= least and (most is None or found <= most):
            return found
    works = f"from {least} on" if most is None else f"from {least} to {most}"
    raise Failure(
        f"{name}={text!r} is not a whole number {works}; torchrun or srun set it, "
        f"or unset RANK and WORLD_SIZE to start ranks here"
    )


def keep_stdout() -> None:
    """What libraries write into file descriptor 1, as NCCL does, goes to stderr from here on.

    This process is a rank and prints results: ``sys.stdout`` alone still leads to stdout. Nothing
    is done where it leads elsewhere already.
    """
    try:
        leads_to = sys.stdout.fileno()
    except (OSError, ValueError, AttributeError):
        return
    if leads_to != 1:
        return
    sys.stdout.flush()
    mine = os.fdopen(os.dup(1), "w", 1, encoding=sys.stdout.encoding, errors=sys.stdout.errors)
    os.dup2(2, 1)
    sys.stdout = mine


@final
class JoinedLauncher:
    """'Starts' a job by taking part in it. After an error the group is lost, for good."""

    def __init__(self, job: Job, fault: Fault | None = None) -> None:
        """``why_not``: the ranks run different code and must not be compared."""
        from spbench.worker.main import connect

        keep_stdout()
        self.fault = fault
        if fault is not None:
            fault.strike(int(os.environ["RANK"]), "init")
        self.group: Group = connect(job, patience_s=job.hang_s)
        facts = json.dumps({"host": socket.gethostname(), "versions": versions_here()})
        everyone = [json.loads(text) for text in self.group.gather_text(facts)]
        self.hosts: list[str] = [one["host"] for one in everyone]
        named = [(f"rank {i} ({one['host']})", one["versions"]) for i, one in enumerate(everyone)]
        self.why_not = difference(named)
        self._notices = Notices.over(os.environ, self.group.rank, self.hosts)
        self._lost = False

    @property
    def is_first(self) -> bool:
        return self.group.rank == 0

    def follow(self) -> None:
        """Every other rank: takes part in each job that rank 0 tells of, and writes nothing."""
        with tempfile.TemporaryDirectory() as folder:
            while text := self.group.gather_text("")[0]:
                self.run(Job.model_validate_json(text), Path(folder))
        self._leave()

    def run(self, job: Job, folder: Path) -> LaunchResult:
        from spbench.worker.failure import failure
        from spbench.worker.main import work

        if self._lost:
            return LaunchResult(ok=False, group_lost=True)
        try:
            if self.is_first:
                self.group.gather_text(job.model_dump_json(by_alias=True, exclude_defaults=True))
            texts = self.group.gather_text(work(job, self.group, self.fault))
        except Exception as error:
            return self._broken(job, folder, failure(error, self.group.rank, self.fault))
        except KeyboardInterrupt:
            # Maybe torchrun's, which ends all ranks when one has failed; then that is the cause.
            told = [] if not self.is_first or self._notices is None else self._notices.words(0.5)
            if not told:
                self._lost = True  # the others are in the midst of something
                raise
            return self._broken(job, folder, None)
        if self.is_first:
            folder.mkdir(parents=True, exist_ok=True)
            for other, written in enumerate(texts):
                write_atomically(sample_path(folder, other), written)
        return LaunchResult(ok=True, hosts=self._named_hosts())

    def close(self) -> None:
        """Tells the others that there are no more jobs."""
        if not self._lost:
            self.group.gather_text("")
            self._leave()

    def _leave(self) -> None:
        if not self._lost:
            if self.fault is not None:
                self.fault.strike(self.group.rank, "teardown")
            self.group.close()

    def _broken(self, job: Job, folder: Path, words: Sample | None) -> LaunchResult:
        """Rank 0: what all ranks said, and how it ended. The others leave their words and go."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the row is to be written first
        self._lost = True
        if not self.is_first:
            self._go(words)
        heard = [] if self._notices is None else self._notices.words()
        folder.mkdir(parents=True, exist_ok=True)
        for sample in [*([words] if words else []), *heard]:
            write_atomically(sample_path(folder, sample.rank), sample.model_dump_json())
        ended = LaunchResult(ok=False, rank=0, exitcode=1, hosts=self._named_hosts())
        if any(
            one.status not in ("ok", "comm_error") for one in [*heard, *([words] if words else [])]
        ):
            return ended
        silent = [] if self._notices is None else self._notices.silent_hosts()
        if silent:
            why = f"{silent[0]} does not answer any more, {job.hang_s:g} s after its last transfer"
            return ended.model_copy(update={"lost": True, "why": why})
        told = {0, *(one.rank for one in heard)}
        stuck = [rank for rank in range(self.group.size) if rank not in told]
        waited = words is not None and "imed out" in words.reason
        if self._notices is None or not stuck or not waited:
            return ended
        where = f"rank {stuck[0]} did not come along while the others waited for it"
        return ended.model_copy(update={"hung": where, "hung_ranks": stuck, "still_s": job.hang_s})

    def _go(self, words: Sample | None) -> NoReturn:
        if words is not None and self._notices is not None:
            self._notices.leave(words)
            if words.status == "comm_error":
                time.sleep(ECHO_S)
        os._exit(1)

    def _named_hosts(self) -> dict[int, str]:
        return dict(enumerate(self.hosts)) if len(set(self.hosts)) > 1 else {}
