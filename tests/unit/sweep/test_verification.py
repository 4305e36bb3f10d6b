"""What becomes of the folder and the message where ranks fail in the middle of their checks."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import NoReturn

import pytest

from spbench.launch.launcher import LaunchResult
from spbench.results.sample import Sample, sample_path
from spbench.sweep import verification
from spbench.sweep.verification import RanksFailedError, run_checks, verify
from spbench.workload.case import GateCheck, Job
from spbench.workload.catalogue import find


class FailingLauncher:
    """Ranks whose files hold a failed sample."""

    def run(self, job: Job, folder: Path) -> LaunchResult:
        folder.mkdir(parents=True)
        sample = Sample(rank=0, status="crash", reason="it broke")
        for rank in range(job.ranks):
            sample_path(folder, rank).write_text(sample.model_dump_json())
        return LaunchResult(ok=False, rank=0, exitcode=1)

    def close(self) -> None:
        """Nothing is open."""


def test_what_a_rank_wrote_of_its_failure_is_the_message(tmp_path: Path) -> None:
    """With the folder of the logs behind it."""
    check = GateCheck(workload=find("axes-2d", "verify"), strategy="dsp")
    job = Job(ranks=2, device="cpu", checks=[check], timeout_s=1.0)
    with pytest.raises(RanksFailedError, match="rank 0: it broke; logs are in"):
        run_checks(job, FailingLauncher(), tmp_path / "ranks")


@pytest.mark.parametrize("error", [RanksFailedError("no"), KeyboardInterrupt()])
def test_logs_are_kept_where_they_are_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """They are kept where ranks failed; what was interrupted leaves nothing."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def fail(*_: object) -> NoReturn:
        raise error

    monkeypatch.setattr(verification, "run_checks", fail)
    with pytest.raises(type(error)):
        verify([], [2], "cpu", 1.0)
    assert len(list(tmp_path.iterdir())) == isinstance(error, RanksFailedError)
