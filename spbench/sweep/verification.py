"""The gate over many shapes: which checks to make, and the result of each."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import click
from pydantic import ValidationError

from spbench.errors import SOME_FAILED, Failure
from spbench.launch.launcher import Launcher, LaunchResult
from spbench.launch.local import LocalLauncher
from spbench.launch.torchrun import JoinedLauncher, joined_ranks
from spbench.results.sample import CHECKED, Checked, Sample, VerifyResult, sample_path
from spbench.results.temporary import keep, temporary_folder
from spbench.sweep.row import ERRORS, largest_columns
from spbench.text import counted
from spbench.workload.case import Device, GateCheck, Job
from spbench.workload.workload import Workload

SHARPNESS = 8.0
"""Multiplies q and k: rows of scores then span more than four hundred, which a careless softmax
or log-sum-exp merge does not survive."""
SHARP_DTYPES = ("float64", "float32")
"""In 16 bits one device does not survive sharp scores either."""
HANG_S = 600.0
"""One device's answer on a large shape may take minutes, in which no rank makes progress."""
SHARP_SHAPES = ("attention-only", "causal-only")


class RanksFailedError(Failure):
    """Ranks ended before they had gone through their checks."""

    def __init__(self, message: str) -> None:
        super().__init__(message, SOME_FAILED)


def checks_for(strategies: Sequence[str], workloads: Sequence[Workload]) -> list[GateCheck]:
    """Every strategy on every workload, the sharp shapes a second time with sharp logits.

    Workload by workload, since all strategies are compared with the same answer.
    """
    return [
        GateCheck(workload=work, strategy=strategy, sharpness=sharpness)
        for work in workloads
        for sharpness in (1.0, SHARPNESS)
        if sharpness == 1.0 or (work.name in SHARP_SHAPES and work.dtype in SHARP_DTYPES)
        for strategy in strategies
    ]


def verify(
    checks: Sequence[GateCheck], ranks: Sequence[int], device: Device, timeout_s: float
) -> list[VerifyResult] | None:
    """Every check on every number of ranks; None on a rank that is not the first.

    Raises RanksFailedError, and keeps the logs only then: its message says where they are.
    """
    jobs = [
        Job(ranks=count, device=device, checks=list(checks), timeout_s=timeout_s) for count in ranks
    ]
    joined = None if joined_ranks() is None else JoinedLauncher(jobs[0])
    if joined is not None and not joined.is_first:
        joined.follow()
        return None
    results: list[VerifyResult] = []
    with temporary_folder("spbench-verify-") as folder:
        launcher = joined or LocalLauncher(folder / "launcher.log")
        with closing(launcher):
            for job in jobs:
                said = f"{counted(len(checks), 'check')} on {counted(job.ranks, 'rank')}"
                click.echo(said, err=True)
                try:
                    results += run_checks(job, launcher, folder / f"{job.ranks}-ranks")
                except RanksFailedError:
                    keep(folder)
                    raise
    return results


def run_checks(job: Job, launcher: Launcher, folder: Path) -> list[VerifyResult]:
    """All checks of ``job`` in one launch. Raises RanksFailedError with the first reason."""
    patient = job.model_copy(update={"hang_s": min(HANG_S, job.timeout_s)})
    launched = launcher.run(patient, folder)
    by_rank = [_read_checks(folder, launched, rank) for rank in range(job.ranks)]
    return [
        _result(check, job.ranks, [checked[i] for checked in by_rank])
        for i, check in enumerate(job.checks)
    ]


def _read_checks(folder: Path, launched: LaunchResult, rank: int) -> list[Checked]:
    """A rank's result of each check. Raises RanksFailedError with what it wrote instead."""
    try:
        text = sample_path(folder, rank).read_text(encoding="utf-8")
        return CHECKED.validate_json(text)
    except OSError:
        why = f"left nothing (exit code {launched.exitcode})"
        if launched.timed_out or launched.hung:
            why = f"took too long ({launched.hung})" if launched.hung else "took too long"
        raise RanksFailedError(f"rank {rank} {why}; logs are in {folder}") from None
    except ValidationError:
        sample = Sample.model_validate_json(text)
        raise RanksFailedError(f"rank {rank}: {sample.reason}; logs are in {folder}") from None


def _result(check: GateCheck, ranks: int, by_rank: Sequence[Checked]) -> VerifyResult:
    """The largest errors of any rank; WRONG if any rank says so."""
    errors = [f"rank {rank}: {seen.wrong}" for rank, seen in enumerate(by_rank) if seen.wrong]
    wrong, declined = next(iter(errors), ""), by_rank[0].declined
    return VerifyResult(
        strategy=check.strategy,
        workload=by_rank[0].gated_on or check.workload.name,
        ranks=ranks,
        dtype=check.workload.dtype,
        sharpness=check.sharpness,
        outcome="declined" if declined else "WRONG" if wrong else "passed",
        reason=declined or wrong,
        **largest_columns(ERRORS, by_rank),
        is_reduced=by_rank[0].gated_on not in ("", check.workload.name),
    )
