"""Which transfers ``spbench doctor --links`` times, and how all ranks' times become rates.

Sizes are those of a workload's strategies; what differs by less than a tenth is one row.
"""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction

from spbench.comm.gradient_buckets import BUCKET_BYTES
from spbench.errors import Failure
from spbench.launch.cluster import placement_of
from spbench.launch.launcher import LaunchResult
from spbench.results.link_report import LinkReport, LinkRow, LinkTimes, LinkTiming
from spbench.results.machine import package_version
from spbench.strategies.registry import load
from spbench.text import counted
from spbench.workload.case import Device, Job
from spbench.workload.fields import DTYPE_BYTES
from spbench.workload.mesh import ALL
from spbench.workload.timed import TimedTransfer
from spbench.workload.traffic import OPS, Transfer
from spbench.workload.workload import Workload

MOST_BYTES = 256 * 2**20
"""Larger tensors are timed at this size: their rate is no other, and they might not fit."""
ALIKE = 1.1
"""The largest ratio of sizes that are timed as one."""
HANG_S = 180.0


@dataclass(frozen=True, kw_only=True)
class LinkCheck:
    """What to time, and on which ranks."""

    workload: Workload
    strategies: Sequence[str]
    ranks: int
    device: Device
    timeout_s: float

    def job(self) -> Job:
        """Raises Failure where no strategy sends anything."""
        if self.ranks == 1:
            raise Failure("a single rank has no other to send to; use --gpus 2 or more")
        transfers = [timed for timed, _ in self.timed()]
        if not transfers:
            why_not = f"{self.strategies[0]}: {self._why_not(self.strategies[0])}"
            on = f"{self.workload.name} on {counted(self.ranks, 'rank')}"
            raise Failure(f"no strategy can run {on}; {why_not}")
        return Job(
            ranks=self.ranks,
            device=self.device,
            transfers=transfers,
            timeout_s=self.timeout_s,
            hang_s=min(HANG_S, self.timeout_s),
        )

    def timed(self) -> list[tuple[TimedTransfer, list[str]]]:
        """Each transfer over all ranks to time and the strategies that use it, by operation, the
        largest first."""
        rows: list[tuple[TimedTransfer, list[str]]] = []
        for timed, name in sorted(self._every(), key=lambda pair: -max(pair[0].elements)):
            users = next((users for other, users in rows if _are_alike(timed, other)), None)
            if users is None:
                rows.append((timed, [name]))
            elif name not in users:
                users.append(name)
        return sorted(rows, key=lambda row: OPS.index(row[0].op))

    def _every(self) -> Iterator[tuple[TimedTransfer, str]]:
        for name in self.strategies:
            if self._why_not(name) is None:
                strategy = load(name)
                for transfer in strategy.on(strategy.flattened(self.workload), self.ranks).traffic:
                    if any(transfer.sent) and transfer.axis == ALL:
                        yield timed_transfer(transfer, self.workload.dtype), name

    def _why_not(self, name: str) -> str | None:
        return load(name).declines(self.workload, self.ranks)


def _are_alike(smaller: TimedTransfer, larger: TimedTransfer) -> bool:
    same = (smaller.op, smaller.gradients) == (larger.op, larger.gradients)
    return same and max(larger.elements) <= ALIKE * max(smaller.elements)


def timed_transfer(transfer: Transfer, dtype: str) -> TimedTransfer:
    """The transfer by the elements that each rank sends or holds; one that is too large by fewer.

    The sum of gradients leaves in buckets, so that a bucket is its size.
    """
    ranks, sent = len(transfer.sent), transfer.sent
    whole = Fraction(sum(sent), ranks - 1)
    match transfer.op:
        case "all_to_all":
            held = list(sent)
        case "all_gather":
            held = [part / (ranks - 1) for part in sent]
        case "reduce_scatter":
            held = [whole - part for part in sent]
        case "p2p":
            held = [whole - sent[rank - 1] for rank in range(ranks)]
        case "all_reduce":
            held = [whole / 2]
    in_gradients = transfer.phase == "gradients"
    most = BUCKET_BYTES if in_gradients else MOST_BYTES
    scale = min(1.0, most / float(sum(held))) / DTYPE_BYTES[dtype]
    elements = [round(float(part) * scale) for part in held]
    return TimedTransfer(op=transfer.op, elements=elements, dtype=dtype, gradients=in_gradients)


def report_of(check: LinkCheck, launched: LaunchResult, times: Sequence[LinkTimes]) -> LinkReport:
    """All ranks' times as rows. A nominal rate counts where each rank has a link of its own:
    NVLink within one machine, a network interface for a single rank on each machine."""
    hosts = [*launched.hosts.values()]
    has_own = not hosts if check.device == "cuda" else len(hosts) == len(set(hosts)) > 0
    nominal = min([rank.nominal_bytes_per_s or 0.0 for rank in times]) or None if has_own else None
    return LinkReport(
        measured_utc=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        workload=check.workload.name,
        device=check.device,
        backend=times[0].backend,
        ranks=check.ranks,
        placement=placement_of(hosts) if hosts else "",
        hosts=list(dict.fromkeys(rank.host for rank in times)),
        hardware=", ".join(dict.fromkeys(rank.hardware for rank in times if rank.hardware)),
        torch=package_version("torch"),
        link=", ".join(dict.fromkeys(rank.link for rank in times if rank.link)),
        nominal_bytes_per_s=nominal,
        rows=[
            _row(timed, users, [rank.timings[number] for rank in times], nominal)
            for number, (timed, users) in enumerate(check.timed())
        ],
    )


def _row(
    timed: TimedTransfer, users: list[str], of_ranks: Sequence[LinkTiming], nominal: float | None
) -> LinkRow:
    """The row of one transfer: its time is that of the slowest rank in each repeat."""
    ms = [max(each) for each in zip(*(timing.ms for timing in of_ranks), strict=True)]
    own_ms = [statistics.median(timing.ms) for timing in of_ranks]
    rates = [x.sent_bytes / own * 1e3 for x, own in zip(of_ranks, own_ms, strict=True)]
    slowest, rate = own_ms.index(max(own_ms)), statistics.median(rates)
    return LinkRow(
        op=timed.op,
        gradients=timed.gradients,
        strategies=users,
        sent_bytes=max(timing.sent_bytes for timing in of_ranks),
        ms=statistics.median(ms),
        ms_low=min(ms),
        ms_high=max(ms),
        repeats=len(ms),
        bytes_per_s=rate,
        slowest_rank=slowest,
        slowest_bytes_per_s=rates[slowest],
        share_of_nominal=rate / nominal if nominal else None,
    )
