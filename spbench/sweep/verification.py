"""The gate over many shapes: which checks to make, and what the ranks said of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from spbench.launch.launcher import Ended, Launcher
from spbench.results.sample import CHECKED, Checked, Sample, sample_path
from spbench.workload.case import Check, Device, Job
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


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One check on one number of ranks: the worst that any rank found."""

    strategy: str
    workload: str
    ranks: int
    dtype: str
    sharpness: float
    outcome: str
    """passed, WRONG or declined."""
    reason: str
    output_error: float | None
    gradient_error: float | None
    tolerance: float | None


def checks_for(strategies: Sequence[str], workloads: Sequence[Workload]) -> list[Check]:
    """Every strategy on every workload, the sharp shapes a second time with sharp logits.

    Workload by workload, since all strategies are compared with the same answer.
    """
    return [
        Check(workload=work, strategy=strategy, sharpness=sharpness)
        for work in workloads
        for sharpness in _sharpnesses(work)
        for strategy in strategies
    ]


def _sharpnesses(work: Workload) -> tuple[float, ...]:
    sharp = work.name in SHARP_SHAPES and work.dtype in SHARP
    return (1.0, SHARP[work.dtype]) if sharp else (1.0,)


def run_checks(
    checks: Sequence[Check],
    ranks: int,
    device: Device,
    launcher: Launcher,
    folder: Path,
    timeout_s: float,
) -> list[Verdict]:
    """All checks in one start of ``ranks``. Raises RanksFailedError with the first reason."""
    hang_s = min(HANG_S, timeout_s)
    job = Job(ranks=ranks, device=device, checks=list(checks), timeout_s=timeout_s, hang_s=hang_s)
    launcher.announce([job])
    ended = launcher.run(job, folder)
    by_rank = [read_found(CHECKED, folder, ended, rank) for rank in range(ranks)]
    return [
        _verdict(check, ranks, [found[i] for found in by_rank]) for i, check in enumerate(checks)
    ]


def read_found(kind: TypeAdapter[list[T]], folder: Path, ended: Ended, rank: int) -> list[T]:
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


def _verdict(check: Check, ranks: int, found: Sequence[Checked]) -> Verdict:
    wrong = next((f"rank {i}: {one.wrong}" for i, one in enumerate(found) if one.wrong), "")
    declined = found[0].declined

    def worst(name: str) -> float | None:
        values = [value for one in found if (value := getattr(one, name)) is not None]
        return max(values, default=None)

    return Verdict(
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
