"""What the ranks of a calibration timed, as one time for each part of the plan."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares
from scipy.stats import trim_mean

from spbench.projection.calibration_plan import LONGER, SHORTER, CalibrationPlan
from spbench.projection.constants import interpolated
from spbench.results.link_report import LinkTimes, LinkTiming
from spbench.workload.timed import TimedKernel, TimedTransfer
from spbench.workload.traffic import OPS, Op

LEAST_MS = 1e-3
HIDES = np.linspace(1.0, 0.02, 50)
"""Parts of a kernel's time that are tried."""


@final
@dataclass(frozen=True, kw_only=True)
class TransferTime:
    """One transfer of a plan, as all ranks timed it."""

    transfer: TimedTransfer
    sent_bytes: float
    seconds: float
    """What it adds to the slowest rank's kernel; where transfers follow each other, its time."""
    kernel_s: float = 0.0
    """The slowest rank's kernel before it; 0: none."""
    hidden_s: float = 0.0
    """What of ``seconds`` that kernel hides when it is called between start and wait."""


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
    slowest: float = 1.0
    """Time of the slowest rank over the mean at an even part of the cores, of kernels that ranks
    begin together: at the next message all wait for it."""
    steps_s: Sequence[float]
    shares_s: Sequence[float]
    launch_s: float
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
            slowest=_slowest(transfers),
            steps_s=_means(times.steps_s for times in by_rank),
            shares_s=_means(times.shares_s for times in by_rank),
            launch_s=max(times.launch_s or 0.0 for times in by_rank),
            cpu_gflop_per_s=by_rank[0].cpu_gflop_per_s,
        )

    def collective(self, op: Op) -> TimedCollective:
        """All sizes of an operation; of a shift the slower time, alone or in a row. Added is what
        messages behind a longer kernel all take more: gloo's sums wake a sleeping thread."""
        slowest: dict[float, float] = {}
        for each in self.of_op(op):
            slowest[each.sent_bytes] = max(slowest.get(each.sent_bytes, 0.0), each.seconds)
        sizes, taken_s = zip(*sorted(slowest.items()), strict=True)
        behind = ((x.seconds, x.sent_bytes) for x in self.of_op(op, LONGER))
        later = [took_s - interpolated(sizes, taken_s, size) for took_s, size in behind]
        later_s = max(0.0, min(later, default=0.0))
        points = [(size, took_s + later_s) for size, took_s in slowest.items()]
        return TimedCollective(ranks=self.plan.ranks, points=points)

    def of_op(self, op: Op, behind: TimedKernel | None = None) -> list[TransferTime]:
        """Transfers of an operation which that kernel may hide; None: those that none does."""
        of_op = (each for each in self.transfers if each.transfer.op == op)
        hides = ((x, x.transfer.between if x.transfer.is_overlapped else None) for x in of_op)
        return [each for each, kernel in hides if kernel == behind]

    def hidden_parts(self) -> dict[str, float]:
        """Parts of a latency, and of what bytes take beyond it, that kernels hide of what they
        could, but no more than a part of the kernel's time: least squares over all operations, of
        equals the largest such part. Empty where no kernel hides anything."""
        could, told = [], []
        for op in OPS:
            behind = [*self.of_op(op, SHORTER), *self.of_op(op, LONGER)]
            latency_s = min((each.seconds for each in behind), default=0.0)
            for each in behind:
                part = 1e3 * min(1.0, each.kernel_s / each.seconds)
                could.append([part * latency_s, part * (each.seconds - latency_s)])
                told.append([1e3 * each.kernel_s, 1e3 * each.hidden_s])
        if not could:
            return {}
        of, (kernel_ms, hidden_ms) = np.array(could), np.transpose(told)

        def off(parts: NDArray[np.float64], hides: float) -> NDArray[np.float64]:
            return np.minimum(of @ parts, hides * kernel_ms) - hidden_ms

        fits = [(x, least_squares(off, (0.5, 0.5), bounds=(0, 1), args=(x,))) for x in HIDES]
        least = min(fit.cost for _, fit in fits)
        hides, fit = next(each for each in fits if each[1].cost <= 1.001 * least + 1e-9)
        latency, rest = map(float, fit.x)
        return {"hidden_latency": latency, "hidden": rest, "hides": float(hides)}

    def kernels(self, kind: str) -> list[tuple[TimedKernel, float]]:
        """Kernels of a kind, and their seconds."""
        pairs = zip(self.plan.kernels, self.kernels_s, strict=True)
        return [(kernel, seconds) for kernel, seconds in pairs if kernel.kind == kind]


def _means(by_rank: Iterable[Sequence[float]]) -> list[float]:
    return [statistics.fmean(each) for each in zip(*by_rank, strict=True)]


def _transfer_time(transfer: TimedTransfer, of_ranks: Sequence[LinkTiming]) -> TransferTime:
    kernel_ms = hidden_ms = 0.0
    if transfer.between is None:
        took_ms = max(statistics.median(each.ms) for each in of_ranks)
    else:
        took_ms = usual([*_added_ms(of_ranks)])
        kernel_ms = usual([*map(max, zip(*(each.kernel_ms for each in of_ranks), strict=True))])
        hidden_ms = statistics.fmean(usual(each.hidden_ms or [0.0]) for each in of_ranks)
    return TransferTime(
        transfer=transfer,
        sent_bytes=max(each.sent_bytes for each in of_ranks),
        seconds=max(took_ms, LEAST_MS) / 1e3,
        kernel_s=kernel_ms / 1e3,
        hidden_s=hidden_ms / 1e3,
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


def _slowest(transfers: Iterable[Sequence[LinkTiming]]) -> float:
    """The slowest rank's kernels between transfers over the mean at an even part of the cores."""
    ratios = [
        max(x.kernel_ms[at] for x in of_ranks) / statistics.fmean(x.evenly_ms[at] for x in of_ranks)
        for of_ranks in transfers
        for at in range(len(of_ranks[0].kernel_ms))
    ]
    return usual(ratios) if ratios else 1.0
