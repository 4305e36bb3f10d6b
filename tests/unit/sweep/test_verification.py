"""What becomes of the folder and the message where ranks fail in the middle of their checks."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import pytest
import torch
from helpers.golden import Golden

from spbench.cli import verify_command
from spbench.comm.group import ShareOfGroup
from spbench.errors import DONE, SOME_FAILED
from spbench.launch.launcher import Deadlines, LaunchResult
from spbench.results.hand_over import CHECKED, Checked, Sample, checks_path, sample_path
from spbench.sweep import verification
from spbench.sweep.verification import RanksFailedError, run_checks, verify
from spbench.worker.observer import Observer
from spbench.worker.rank_process import work
from spbench.workload.case import GateCheck, Job
from spbench.workload.catalogue import find, with_settings


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


def test_what_a_rank_wrote_of_its_failure_is_the_message(tmp_path: Path, golden: Golden) -> None:
    """With the folder of the logs behind it."""
    check = GateCheck(workload=find("axes-2d", "verify"), strategy="dsp")
    job = Job(ranks=2, device="cpu", checks=[check], timeout_s=1.0)
    with pytest.raises(RanksFailedError) as refused:
        run_checks(job, FailingLauncher(), tmp_path / "ranks")
    golden(refused.value)


@dataclass
class Scripted:
    """Ranks that end, as ``how`` says, in each check of ``rsa``; the others they go through."""

    how: LaunchResult
    takes_s: float = 0.0
    jobs: list[Job] = field(default_factory=list)

    def run(self, job: Job, folder: Path) -> LaunchResult:
        folder.mkdir(parents=True)
        self.jobs.append(job)
        time.sleep(self.takes_s)
        names = [check.strategy for check in job.checks]
        done = names.index("rsa") if "rsa" in names else len(names)
        found = Checked(output_error=0.0, gradient_error=0.0, tolerance=1.0)
        for rank in range(job.ranks):
            lines = f"{found.model_dump_json()}\n" * done + "torn"
            checks_path(folder, rank).write_text(lines)
        if done == len(names):
            whole = CHECKED.dump_json([found] * done)
            for rank in range(job.ranks):
                sample_path(folder, rank).write_bytes(whole)
            return LaunchResult(ok=True)
        return self.how

    def close(self) -> None:
        """Nothing is open."""


def checks_of(*strategies: str) -> list[GateCheck]:
    return [GateCheck(workload=find("axes-2d", "verify"), strategy=name) for name in strategies]


ENDS = {
    "crash: rank 1 was ended by SIGSEGV": LaunchResult(ok=False, rank=1, exitcode=-11),
    "hang: rank 1 stopped in rsa; nothing moved for 9 s (--hang-after sets the limit)": (
        LaunchResult(ok=False, hung="rank 1 stopped in rsa", hung_ranks=[1], still_s=9.0)
    ),
}


@pytest.mark.parametrize("why", ENDS)
def test_checks_go_on_behind_one_that_crashed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str, golden: Golden
) -> None:
    """It is named with its cause and its logs, which are kept; the others have their results, and
    the command ends with 3."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    scripted = Scripted(ENDS[why])
    monkeypatch.setattr(verification, "LocalLauncher", lambda _: scripted)
    checks = checks_of("dsp", "rsa", "ulysses", "rsa", "dsp")
    results = verify(checks, [2], "cpu", Deadlines(launch_s=100.0, hang_s=7.0))
    assert results is not None
    outcomes = [(result.strategy, result.outcome) for result in results]
    passed, failed = "passed", "FAILED"
    assert outcomes == list(
        zip(["dsp", "rsa", "ulysses", "rsa", "dsp"], [passed, failed] * 2 + [passed], strict=True)
    )
    assert results[1].reason.startswith(why)
    (kept,) = tmp_path.iterdir()
    golden(results[1].reason, hide={kept.name: "KEPT"})
    assert {job.hang_s for job in scripted.jobs} == {7.0}
    assert len(scripted.jobs) == 3
    assert verify_command._show(results, as_json=True) == SOME_FAILED
    assert verify_command._show(results[:1], as_json=False) == DONE


def test_checks_end_with_the_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    """The check under way is blamed; of the others it is said that they were not begun."""
    scripted = Scripted(LaunchResult(ok=False, timed_out=True), takes_s=0.2)
    (check, *others) = checks_of("rsa", "dsp", "dsp")
    job = Job(ranks=2, device="cpu", checks=[check, *others], timeout_s=0.1)
    (result,) = run_checks(job, scripted, tmp_path)
    golden(result.reason, "of the check under way")
    golden(capsys.readouterr().err, "of the others")


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
        verify([], [2], "cpu", Deadlines(launch_s=1.0))
    assert len(list(tmp_path.iterdir())) == isinstance(error, RanksFailedError)


def test_a_rank_that_joined_has_no_folder_yet(tmp_path: Path) -> None:
    """Its checks so far are written all the same, and what its file will hold."""
    small = with_settings(find("axes-2d", "verify"), ["axes={time: 2, space: 2}", "dtype=float64"])
    job = Job(ranks=1, device="cpu", checks=[GateCheck(workload=small, strategy="dsp")])
    folder = tmp_path / "2-ranks" / "from-1"
    written = work(job, ShareOfGroup(torch.device("cpu"), 1), Observer(), folder)
    (checked,) = CHECKED.validate_json(written)
    assert Checked.model_validate_json(checks_path(folder, 0).read_text()) == checked
