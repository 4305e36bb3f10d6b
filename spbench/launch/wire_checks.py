"""Bytes that were counted against bytes that the kernel saw: what the ranks found, judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from spbench.launch import namespace
from spbench.launch.launcher import Launcher
from spbench.results.wire_result import WIRED, Wired
from spbench.sweep.verification import RanksFailedError, read_found
from spbench.workload.case import GateCheck, Job

MOST = 1.02
OVERHEAD_BYTES = 100
"""The most that a packet is larger than what was counted of it: IP and TCP headers with their
options, 52 bytes (72 in IPv6), and one of gloo's notices, 48, of which several share a packet if
they can. An acknowledgement is a packet that is nothing else."""
SEGMENT_BYTES = 2**16
"""The most that a packet of loopback holds: what one that is sent again adds."""

Outcome = Literal["passed", "WRONG", "unclear", "declined"]


@dataclass(frozen=True, kw_only=True)
class WireVerdict:
    """One strategy on one number of ranks: all ranks and steps together."""

    strategy: str
    workload: str
    dtype: str
    ranks: int
    steps: int | None = None
    counted_bytes: int | None = None
    wire_bytes: int | None = None
    wire_packets: int | None = None
    resent_segments: int | None = None
    wire_over_counted: float | None = None
    """Blank where nothing was counted."""
    outcome: Outcome
    reason: str


def run_wire_checks(
    checks: Sequence[GateCheck], ranks: int, launcher: Launcher, folder: Path, timeout_s: float
) -> list[WireVerdict]:
    """All checks in one start of ``ranks``, which ``launcher`` starts in a namespace of their own.

    Raises RanksFailedError with the first reason, and where they were in this process's.
    """
    job = Job(ranks=ranks, device="cpu", checks=list(checks), wire=True, timeout_s=timeout_s)
    ended = launcher.run(job, folder)
    by_rank = [read_found(WIRED, folder, ended, rank) for rank in range(ranks)]
    return [
        _verdict(check, ranks, [found[i] for found in by_rank]) for i, check in enumerate(checks)
    ]


def _verdict(check: GateCheck, ranks: int, found: Sequence[Wired]) -> WireVerdict:
    first, dtype = found[0], check.workload.dtype
    if first.wire_bytes is None or first.wire_packets is None or first.resent_segments is None:
        return WireVerdict(
            strategy=check.strategy,
            workload=check.workload.name,
            dtype=dtype,
            ranks=ranks,
            outcome="declined",
            reason=first.declined,
        )
    if first.namespace == namespace.current():
        raise RanksFailedError(f"the ranks' network is that of all others here, {first.namespace}")
    counted = sum(one.counted_bytes or 0 for one in found)
    outcome, reason = judged(
        counted, first.wire_bytes, packets=first.wire_packets, resent=first.resent_segments
    )
    return WireVerdict(
        strategy=check.strategy,
        workload=first.workload,
        dtype=dtype,
        ranks=ranks,
        steps=first.steps,
        counted_bytes=counted,
        wire_bytes=first.wire_bytes,
        wire_packets=first.wire_packets,
        resent_segments=first.resent_segments,
        wire_over_counted=first.wire_bytes / counted if counted else None,
        outcome=outcome,
        reason=reason,
    )


def judged(
    counted_bytes: int, wire_bytes: int, *, packets: int, resent: int
) -> tuple[Outcome, str]:
    """The outcome, and a sentence unless it is passed.

    Where headers, notices and what was sent twice may explain all that is beyond the margin, it
    is no fault of the counting, and no proof of it: ``unclear``.
    """
    saw = f"the wire saw {wire_bytes:,} bytes where {counted_bytes:,} were counted"
    if wire_bytes < counted_bytes:
        return "WRONG", f"{saw}: some were not sent"
    if counted_bytes and wire_bytes <= MOST * counted_bytes:
        return "passed", ""
    most = OVERHEAD_BYTES * packets + SEGMENT_BYTES * resent
    overhead = f"headers and gloo's notices of {packets:,} packets"
    if resent:
        overhead += f", of which {resent:,} were sent twice,"
    if wire_bytes - counted_bytes > most:
        return "WRONG", f"{saw}; {overhead} are at most {most:,} of them"
    return "unclear", (
        f"{saw}; {overhead} may be the rest. A workload that sends longer messages would tell"
    )
