"""The gate over many shapes: which checks to make, and what the ranks said of them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import click
from pydantic import TypeAdapter, ValidationError

from spbench.errors import SOME_FAILED, Failure
from spbench.launch.launcher import Launcher, LaunchResult
from spbench.launch.local import LocalLauncher
from spbench.launch.torchrun import JoinedLauncher, joined_ranks
from spbench.results.sample import CHECKED, Checked, Sample, VerifyResult, sample_path
from spbench.text import counted
from spbench.workload.case import Device, GateCheck, Job
from spbench.workload.workload import Workload

T = TypeVar("T")

SHARP = {"float64": 8.0, "float32": 8.0}
"""Multiplies q and k: rows of scores then span more than four hundred, which a careless softmax
or log-sum-exp merge does not survive. In 16 bits one device does not survive it either."""
HANG_S = 600.0
"""One device's answer on a large shape may take minutes, in which no rank tells of itself."""
SHARP_SHAPES = ("attention-only", "causal-only")


class RanksFailedError(Exception):
    """Ranks ended before they had gone through their checks."""


def checks_for(strategies: Sequence[str], workloads: Sequence[Workload]) -> list[GateCheck]:
    """Every strategy on every workload, the sharp shapes a second time with sharp logits.

    Workload by workload, since all strategies are compared with the same answer.
    """
    return [
        GateCheck(workload=work, strategy=strategy, sharpness=sharpness)
        for work in workloads
        for sharpness in _sharpnesses(work)
        for strategy in strategies
    ]


def _sharpnesses(work: Workload) -> tuple[float, ...]:
    sharp = work.name in SHARP_SHAPES and work.dtype in SHARP
    return (1.0, SHARP[work.dtype]) if sharp else (1.0,)


def verify(
    checks: Sequence[GateCheck], ranks: Sequence[int], device: Device, timeout_s: float
) -> list[VerifyResult] | None:
    """Every check on every number of ranks; None on a rank that is not the first."""
    joined: JoinedLauncher | None = None
    if joined_ranks() is not None:
        job = Job(ranks=ranks[0], device=device, checks=list(checks), timeout_s=timeout_s)
        joined = JoinedLauncher(job)
        if not joined.is_first:
            joined.follow()
            return None
    return on_each(
        ranks,
        checks,
        lambda log: joined or LocalLauncher(log),
        lambda size, launcher, folder: run_checks(
            checks, size, device, launcher, folder, timeout_s
        ),
    )


def run_checks(
    checks: Sequence[GateCheck],
    ranks: int,
    device: Device,
    launcher: Launcher,
    folder: Path,
    timeout_s: float,
) -> list[VerifyResult]:
    """All checks in one start of ``ranks``. Raises RanksFailedError with the first reason."""
    hang_s = min(HANG_S, timeout_s)
    job = Job(ranks=ranks, device=device, checks=list(checks), timeout_s=timeout_s, hang_s=hang_s)
    ended = launcher.run(job, folder)
    by_rank = [read_found(CHECKED, folder, ended, rank) for rank in range(ranks)]
    return [
        _result(check, ranks, [found[i] for found in by_rank]) for i, check in enumerate(checks)
    ]


def on_each(
    ranks: Sequence[int],
    checks: Sequence[GateCheck],
    make: Callable[[Path], Launcher],
    run: Callable[[int, Launcher, Path], list[T]],
) -> list[T]:
    """What ``run`` finds with each number of ranks, in a folder of its own, all in one list.

    ``make`` gives the launcher, whose log lies at the path. Raises Failure if ranks fail.
    """
    # The logs are worth keeping only if ranks fail, and then the message says where they are.
    folder = Path(tempfile.mkdtemp(prefix="spbench-verify-"))
    launcher = make(folder / "launcher.log")
    found: list[T] = []
    keep = False
    try:
        for size in ranks:
            click.echo(f"{counted(len(checks), 'check')} on {counted(size, 'rank')}", err=True)
            found += run(size, launcher, folder / f"{size}-ranks")
    except RanksFailedError as error:
        keep = True
        raise Failure(str(error), SOME_FAILED) from None
    finally:
        launcher.close()
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    return found


def read_found(kind: TypeAdapter[list[T]], folder: Path, ended: LaunchResult, rank: int) -> list[T]:
    """What a rank wrote of its checks. Raises RanksFailedError with what it wrote instead."""
    path = sample_path(folder, rank)
    try:
        text = path.read_text(encoding="utf-8")
        return kind.validate_json(text)
    except OSError:
        why = f"left nothing (exit code {ended.exitcode})"
        if ended.timed_out or ended.hung:
            why = f"took too long ({ended.hung})" if ended.hung else "took too long"
        raise RanksFailedError(f"rank {rank} {why}; logs are in {folder}") from None
    except ValidationError:
        sample = Sample.model_validate_json(text)
        raise RanksFailedError(f"rank {rank}: {sample.reason}; logs are in {folder}") from None


def _result(check: GateCheck, ranks: int, found: Sequence[Checked]) -> VerifyResult:
    wrong = next((f"rank {i}: {one.wrong}" for i, one in enumerate(found) if one.wrong), "")
    declined = found[0].declined

    def worst(name: str) -> float | None:
        values = [value for one in found if (value := getattr(one, name)) is not None]
        return max(values, default=None)

    return VerifyResult(
        strategy=check.strategy,
        workload=found[0].gated_on or check.workload.name,
        ranks=ranks,
        dtype=check.workload.dtype,
        sharpness=check.sharpness,
        outcome="declined" if declined else "WRONG" if wrong else "passed",
        reason=declined or wrong,
        output_error=worst("output_error"),
        gradient_error=worst("gradient_error"),
        tolerance=worst("tolerance"),
    )
