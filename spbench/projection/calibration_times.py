"""What the ranks of a calibration timed, as one time for each part of the plan."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import final

from scipy.stats import trim_mean

from spbench.projection.calibration_plan import CalibrationPlan
from spbench.results.link_report import LinkTimes, LinkTiming
from spbench.workload.timed import TimedKernel, TimedTransfer
from spbench.workload.traffic import Op

LEAST_MS = 1e-3


@final
@dataclass(frozen=True, kw_only=True)
class TransferTime:
    """One transfer of a plan, as all ranks timed it."""

    transfer: TimedTransfer
    sent_bytes: float
    seconds: float
    """What it adds to the slowest rank's kernel; where transfers follow each other, its time."""


@final
@dataclass(frozen=True, kw_only=True)
class TimedCollective:
    """One operation on so many ranks."""

    ranks: int
    points: Sequence[tuple[float, float]]
    """Bytes that a rank sends, and seconds."""


@final
@dataclass(frozen=True, kw_only=True)
class Timed:
    """A plan, and one time of all ranks for each of its parts."""

    plan: CalibrationPlan
    kernels_s: Sequence[float]
    transfers: Sequence[TransferTime]
    steps_s: Sequence[float]
    shares_s: Sequence[float]
    launch_s: float
    together_s: Sequence[float] = ()
    """Seconds of steps that all ranks do together; empty where they were not timed."""
    cpu_gflop_per_s: float | None = None
    """GFLOP/s of a fixed product at the speed at which kernels took that long; None: a GPU."""

    @classmethod
    def of(cls, plan: CalibrationPlan, by_rank: Sequence[LinkTimes]) -> "Timed":
        """All ranks' times: the mean over ranks of kernels and steps, which they compute side by
        side; of transfers what they add to the slowest rank's kernel, or where they follow each
        other the slowest rank's time."""
        transfers = list(zip(*(times.timings for times in by_rank), strict=True))
        return cls(
            plan=plan,
            kernels_s=_means(times.kernels_s for times in by_rank),
            transfers=list(map(_transfer_time, plan.transfers, transfers)),
            steps_s=_means(times.steps_s for times in by_rank),
            shares_s=_means(times.shares_s for times in by_rank),
            together_s=_means(times.together_s for times in by_rank),
            launch_s=max(times.launch_s or 0.0 for times in by_rank),
            cpu_gflop_per_s=by_rank[0].cpu_gflop_per_s,
        )

    def collective(self, op: Op) -> TimedCollective:
        """All sizes of an operation; of a shift the slower time, alone or in a row."""
        slowest: dict[float, float] = {}
        for each in self.transfers:
            if each.transfer.op == op:
                slowest[each.sent_bytes] = max(slowest.get(each.sent_bytes, 0.0), each.seconds)
        return TimedCollective(ranks=self.plan.ranks, points=[*slowest.items()])

    def kernels(self, kind: str) -> list[tuple[TimedKernel, float]]:
        """Kernels of a kind, and their seconds."""
        pairs = zip(self.plan.kernels, self.kernels_s, strict=True)
        return [(kernel, seconds) for kernel, seconds in pairs if kernel.kind == kind]


def _means(by_rank: Iterable[Sequence[float]]) -> list[float]:
    return [statistics.fmean(each) for each in zip(*by_rank, strict=True)]


def _transfer_time(transfer: TimedTransfer, of_ranks: Sequence[LinkTiming]) -> TransferTime:
    if transfer.between is None:
        took_ms = max(statistics.median(each.ms) for each in of_ranks)
    else:
        took_ms = usual([*_added_ms(of_ranks)])
    return TransferTime(
        transfer=transfer,
        sent_bytes=max(each.sent_bytes for each in of_ranks),
        seconds=max(took_ms, LEAST_MS) / 1e3,
    )


def usual(rounds: Sequence[float]) -> float:
    """The mean of rounds without a fifth at either end, of fewer than five the median. Single calls
    take a tenth to three times their mean, of which a step has many: a median is too little."""
    return float(trim_mean(rounds, 0.2)) if len(rounds) >= 5 else statistics.median(rounds)


def _added_ms(of_ranks: Sequence[LinkTiming]) -> Iterable[float]:
    """What a transfer adds to the slowest rank's kernel, round by round."""
    kernels = list(zip(*(each.kernel_ms for each in of_ranks), strict=True))
    added = zip(*(each.ms for each in of_ranks), strict=True)
    for kernel_ms, ms in zip(kernels, added, strict=True):
        yield statistics.fmean(kernel_ms) + statistics.fmean(ms) - max(kernel_ms)
