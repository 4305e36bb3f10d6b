"""What the ranks of a calibration timed, as one time for each part of the plan."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import final

from spbench.projection.calibration_plan import CalibrationPlan
from spbench.results.link_report import LinkTimes, LinkTiming
from spbench.workload.timed import TimedKernel

LEAST_MS = 1e-3
COMPARABLE = 5.0
"""The largest ratio of a transfer and a kernel that tell how much of one the other hides."""


@final
@dataclass(frozen=True, kw_only=True)
class Timed:
    """A plan, and one time of all ranks for each of its parts."""

    plan: CalibrationPlan
    kernels_s: Sequence[float]
    sent_bytes: Sequence[float]
    transfers_s: Sequence[float]
    hidden: Sequence[float | None]
    """Part of what a kernel could hide of each transfer that was hidden; None: not timed."""
    slowest: float = 1.0
    """Time of the slowest rank over the mean, of kernels that ranks begin together: at the next
    message all wait for it."""
    steps_s: Sequence[float]
    shares_s: Sequence[float]
    launch_s: float
    cpu_gflop_per_s: float | None = None
    """GFLOP/s of a fixed product at the speed at which kernels took that long; None: a GPU."""

    @classmethod
    def of(cls, plan: CalibrationPlan, by_rank: Sequence[LinkTimes]) -> Timed:
        """All ranks' times: the mean over ranks of kernels and steps, which they compute side by
        side; of transfers what they add to the slowest rank's kernel, or where they follow each
        other the slowest rank's time."""
        transfers = list(zip(*(times.timings for times in by_rank), strict=True))
        return cls(
            plan=plan,
            kernels_s=_means(times.kernels_s for times in by_rank),
            sent_bytes=[max(x.sent_bytes for x in each) for each in transfers],
            transfers_s=[_transfer_s(each) for each in transfers],
            hidden=[_hidden(each) for each in transfers],
            slowest=_slowest(transfers),
            steps_s=_means(times.steps_s for times in by_rank),
            shares_s=_means(times.shares_s for times in by_rank),
            launch_s=max(times.launch_s or 0.0 for times in by_rank),
            cpu_gflop_per_s=by_rank[0].cpu_gflop_per_s,
        )

    def kernels(self, kind: str) -> list[tuple[TimedKernel, float]]:
        """Kernels of a kind, and their seconds."""
        pairs = zip(self.plan.kernels, self.kernels_s, strict=True)
        return [(kernel, seconds) for kernel, seconds in pairs if kernel.kind == kind]


def _means(by_rank: Iterable[Sequence[float]]) -> list[float]:
    return [statistics.fmean(each) for each in zip(*by_rank, strict=True)]


def _transfer_s(of_ranks: Sequence[LinkTiming]) -> float:
    if all(each.kernel_ms for each in of_ranks):
        took_ms = statistics.median(_added_ms(of_ranks))
    else:
        took_ms = max(statistics.median(each.ms) for each in of_ranks)
    return max(took_ms, LEAST_MS) / 1e3


def _added_ms(of_ranks: Sequence[LinkTiming]) -> Iterable[float]:
    """What a transfer adds to the slowest rank's kernel, round by round."""
    kernels = list(zip(*(each.kernel_ms for each in of_ranks), strict=True))
    added = zip(*(each.ms for each in of_ranks), strict=True)
    for kernel_ms, ms in zip(kernels, added, strict=True):
        yield statistics.fmean(kernel_ms) + statistics.fmean(ms) - max(kernel_ms)


def _hidden(of_ranks: Sequence[LinkTiming]) -> float | None:
    """None where the kernel or the transfer is too short to hide a part of the other."""
    if not all(each.kernel_ms for each in of_ranks):
        return None
    sent, kernel, hidden = (
        statistics.fmean(statistics.median(getattr(each, name)) for each in of_ranks)
        for name in ("ms", "kernel_ms", "hidden_ms")
    )
    if not 1 / COMPARABLE <= sent / kernel <= COMPARABLE:
        return None
    return min(max(hidden / min(sent, kernel), 0.0), 1.0)


def _slowest(transfers: Iterable[Sequence[LinkTiming]]) -> float:
    """The slowest rank's time over the mean of the ranks', of kernels between transfers: the mean
    over all rounds."""
    rounds = (
        each
        for of_ranks in transfers
        for each in zip(*(x.kernel_ms for x in of_ranks), strict=True)
    )
    ratios = [max(each) / statistics.fmean(each) for each in rounds]
    return statistics.fmean(ratios) if ratios else 1.0
