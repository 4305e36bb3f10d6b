"""Joining ranks that somebody else started: torchrun, srun, any launcher that sets RANK.

Each of those processes runs the same command. They form one process group and go through
the same cases in step; rank 0 alone reads and writes the results directory.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, final

from pydantic import TypeAdapter

from spbench.launch.local import Ended
from spbench.results.sample import sample_path, write_atomically
from spbench.workload.job import Job

if TYPE_CHECKING:
    from spbench.bench.fault import Fault
    from spbench.comm.group import Group


JOBS = TypeAdapter(list[Job])


def joined_ranks(environ: Mapping[str, str]) -> int | None:
    """WORLD_SIZE, if this process is one rank of a launch under way."""
    if "RANK" in environ and "WORLD_SIZE" in environ:
        return int(environ["WORLD_SIZE"])
    return None


@final
class JoinedLauncher:
    """'Starts' a job by taking part in it. After an error the group is lost, for good."""

    def __init__(self, job: Job, fault: Fault | None = None) -> None:
        from spbench.bench.main import connect

        self.fault = fault
        self.group: Group = connect(job)
        self._lost = False

    @property
    def is_first(self) -> bool:
        return self.group.rank == 0

    def announce(self, jobs: Sequence[Job]) -> None:
        """Rank 0 tells the others what is left to do."""
        self.group.gather_text(
            JOBS.dump_json(list(jobs), by_alias=True, exclude_defaults=True).decode()
        )

    def follow(self) -> None:
        """Every other rank: takes part in what rank 0 announces, and writes nothing."""
        announced = self.group.gather_text("")[0]
        with tempfile.TemporaryDirectory() as folder:
            for job in JOBS.validate_json(announced):
                self.run(job, Path(folder))
        self.close()

    def run(self, job: Job, folder: Path) -> Ended:
        from spbench.bench.main import failure, run_case, run_checks

        rank = self.group.rank
        if self._lost:
            return Ended(ok=False, group_lost=True)
        try:
            if job.case is not None:
                text = run_case(job.case, self.group, self.fault).model_dump_json()
            else:
                text = run_checks(job, self.group)
        except Exception as error:
            folder.mkdir(parents=True, exist_ok=True)
            last_words = failure(error, rank, self.fault)
            write_atomically(sample_path(folder, rank), last_words.model_dump_json())
            if not self.is_first:
                os._exit(1)
            self._lost = True
            return Ended(ok=False, rank=rank, exitcode=1)
        texts = self.group.gather_text(text)
        if self.is_first:
            folder.mkdir(parents=True, exist_ok=True)
            for other, written in enumerate(texts):
                write_atomically(sample_path(folder, other), written)
        return Ended(ok=True)

    def close(self) -> None:
        if not self._lost:
            self.group.close()
