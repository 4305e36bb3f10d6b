"""The gate over many shapes: which checks to make, and the result of each."""

import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from spbench.errors import SOME_FAILED, Failure, or_none
from spbench.launch.launcher import Deadlines, Launcher, status_and_cause
from spbench.launch.local import LocalLauncher, read_samples
from spbench.launch.torchrun import JoinedLauncher, joined_ranks
from spbench.results.hand_over import (
    CHECKED,
    Checked,
    Sample,
    VerifyResult,
    checks_path,
    sample_path,
)
from spbench.results.temporary import keep, temporary_folder
from spbench.sweep.row import ERRORS, largest_columns
from spbench.text import counted
from spbench.workload.case import Device, GateCheck, Job
from spbench.workload.mesh import NO_MESH, CaseMesh
from spbench.workload.workload import Workload

SHARPNESS = 8.0
"""Multiplies q and k: rows of scores then span more than four hundred, and lie up to a thousand
below zero or above, which a careless softmax or log-sum-exp merge does not survive."""
SHARP_DTYPES = ("float64", "float32")
"""In 16 bits one device does not survive sharp scores either."""
FAILED = "FAILED"
SHARP_SHAPES = ("attention-only", "causal-only")
FORM_SHAPES: tuple[str, ...] = ("axes-2d", "axes-2d-uneven", "causal", "few-key-heads", "streams")
FORM_SHAPES += ("deep", "guided", "documents")
"""Axes that divide, uneven axes and heads, a mask, few keys, text beside, an optimizer, guidance,
documents."""

MESH_SHAPES = ("causal", "streams")
"""A mask, and text beside, at a batch of two."""


class RanksFailedError(Failure):
    """Ranks ended, and not in the midst of a check."""

    code = SOME_FAILED


def checks_for(
    strategies: Sequence[str],
    workloads: Sequence[Workload],
    meshes: Sequence[CaseMesh] = (),
    forms: Sequence[str] = (),
) -> list[GateCheck]:
    """Every strategy on every workload, the sharp shapes a second time with sharp logits.

    Parameters
    ----------
    strategies
        Names with options.
    workloads
        What they are proved on.
    meshes
        Axes around those of the strategies; without any, branches of guidance are proved in groups
        of their own, too, and a few shapes in others.
    forms
        Further strategies with options, which a few shapes tell apart.

    Returns
    -------
    Workload by workload, since all strategies are compared with the same answer.
    """
    return [
        GateCheck(workload=work, strategy=strategy, mesh=mesh, sharpness=sharpness)
        for work in workloads
        for sharpness in (1.0, SHARPNESS)
        if sharpness == 1.0 or (work.name in SHARP_SHAPES and work.dtype in SHARP_DTYPES)
        for mesh in meshes or dict.fromkeys((NO_MESH, CaseMesh(cfg=work.guidance), *around(work)))
        for strategy in (*strategies, *(forms if work.name in FORM_SHAPES else ()))
    ]


def around(workload: Workload) -> Sequence[CaseMesh]:
    """Meshes in which a few shapes are proved: half of the batch, of the weights, of the blocks."""
    every = CaseMesh(dp=2), CaseMesh(tp=2), CaseMesh(pp=2)
    return every if workload.name in MESH_SHAPES else ()


def verify(
    checks: Sequence[GateCheck], ranks: Sequence[int], device: Device, deadlines: Deadlines
) -> list[VerifyResult] | None:
    """Every check on every number of ranks. Logs are kept, and named, where ranks failed.

    Parameters
    ----------
    checks
        What to prove.
    ranks
        Numbers of ranks.
    device
        What they compute on.
    deadlines
        When a launch is given up.

    Returns
    -------
    The results; None on a rank that is not the first.

    Raises
    ------
    RanksFailedError
        Ranks failed, and no check is to blame.
    """
    timeout_s, hang_s = deadlines.launch_s, deadlines.hang_s
    limited = Job(ranks=1, device=device, checks=list(checks), timeout_s=timeout_s, hang_s=hang_s)
    jobs = [limited.model_copy(update={"ranks": count}) for count in ranks]
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
        if any(result.outcome == FAILED for result in results):
            keep(folder)
    return results


def run_checks(job: Job, launcher: Launcher, folder: Path) -> list[VerifyResult]:
    """All checks of ``job``: in one launch, and in a further one behind each check in which ranks
    failed, until its time is up. Raises RanksFailedError if they failed outside of any check."""
    deadline_s = time.monotonic() + job.timeout_s
    results: list[VerifyResult] = []
    while rest := job.checks[len(results) :]:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            click.echo(f"--timeout reached; {counted(len(rest), 'check')} not begun", err=True)
            break
        launch = job.model_copy(update={"checks": rest, "timeout_s": left_s})
        results += _launch(launch, job, launcher, folder / f"from-{len(results) + 1}")
    return results


def _launch(launch: Job, job: Job, launcher: Launcher, folder: Path) -> list[VerifyResult]:
    """The results of the checks that one launch of ``job`` came to; the last may be one that ended
    it. Raises RanksFailedError if a rank had not begun its checks, or its file is on another
    machine: nothing can be told of the other checks."""
    launched = launcher.run(launch, folder)
    by_rank = [_read_checks(folder, rank) for rank in range(job.ranks)]
    done = min(len(checked or ()) for checked in by_rank)
    results = [
        _result(check, job.ranks, [checked[i] for checked in by_rank if checked])
        for i, check in enumerate(launch.checks[:done])
    ]
    if done == len(launch.checks):
        return results
    begun = {rank: len(found) for rank, found in enumerate(by_rank) if found is not None}
    through = [rank for rank, count in begun.items() if count == len(launch.checks)]
    samples = [Sample(rank=rank, status="ok") for rank in through] + read_samples(job, folder)
    why = f"{': '.join(status_and_cause(launched, samples, job))}; logs are in {folder}"
    if None in by_rank:
        left = [check for count in begun.values() for check in launch.checks[count:]]
        where = f"{left[0].name} on {left[0].workload.name}: " if left else ""
        raise RanksFailedError(f"{where}{why}")
    return [*results, _outcome(launch.checks[done], job.ranks, FAILED, why)]


def _read_checks(folder: Path, rank: int) -> list[Checked] | None:
    """What the rank found in each check that it came to; None if it began none."""
    whole = or_none(lambda: CHECKED.validate_json(sample_path(folder, rank).read_bytes()))
    if whole is not None:
        return whole
    lines = or_none(lambda: checks_path(folder, rank).read_text(encoding="utf-8").split("\n")[:-1])
    return None if lines is None else [Checked.model_validate_json(line) for line in lines]


def _result(check: GateCheck, ranks: int, by_rank: Sequence[Checked]) -> VerifyResult:
    """The largest errors of any rank; WRONG if any rank says so."""
    errors = [f"rank {rank}: {seen.wrong}" for rank, seen in enumerate(by_rank) if seen.wrong]
    wrong, declined = next(iter(errors), ""), by_rank[0].declined
    outcome = "declined" if declined else "WRONG" if wrong else "passed"
    compared = by_rank[0].gated_on or check.workload.name
    errors_of = largest_columns(ERRORS, by_rank)
    return _outcome(check, ranks, outcome, declined or wrong, compared, **errors_of)


def _outcome(
    check: GateCheck, ranks: int, outcome: str, reason: str, compared: str = "", **errors: Any
) -> VerifyResult:
    return VerifyResult(
        strategy=check.name,
        workload=compared or check.workload.name,
        is_reduced=compared not in ("", check.workload.name),
        ranks=ranks,
        dtype=check.workload.dtype,
        sharpness=check.sharpness,
        outcome=outcome,
        reason=reason,
        **errors,
    )
