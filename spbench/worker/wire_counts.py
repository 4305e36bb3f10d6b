"""Counted bytes against the kernel's own count: what ``spbench verify --wire`` runs in each rank.

The ranks live in a network namespace with nothing in it but loopback, so that whatever its
counter gains during a few steps was sent by them: tensors, the headers around them, gloo's
notices, acknowledgements, the barriers before and after. Nothing is taken off.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from spbench.comm.group import Group
from spbench.results.heartbeat import Heartbeat
from spbench.results.wire_result import Wired
from spbench.strategies.registry import load
from spbench.worker.reference import workload_to_compare
from spbench.worker.run_case import watched
from spbench.worker.step import Step
from spbench.workload.case import GateCheck
from spbench.workload.traffic import Count

WARM_UP = 2
ENOUGH_BYTES = 32 * 2**20
"""Of the busiest rank: beside it barriers and the launcher's heartbeat, some KiB, are nothing."""
MAX_STEPS = 100


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What loopback has transmitted since it exists, and what TCP sent a second time."""

    sent_bytes: int
    packets: int
    resent_segments: int
    namespace: str


def loopback(process: Path = Path("/proc/self")) -> Reading:
    """Of the namespace that ``process`` is in. Raises ValueError if it has none.

    Not from /sys/class/net, which shows the namespace of whoever mounted it.
    """
    devices, protocols = process / "net" / "dev", process / "net" / "snmp"
    # Transmitted stands behind eight figures of what is received.
    _, *found = _line(devices, "lo:", 0).replace(":", " ").split()
    names, figures = (_line(protocols, "Tcp:", i).split() for i in (0, 1))
    return Reading(
        sent_bytes=int(found[8]),
        packets=int(found[9]),
        resent_segments=int(dict(zip(names, figures, strict=True))["RetransSegs"]),
        namespace=str((process / "ns" / "net").readlink()),
    )


def _line(file: Path, begin: str, place: int) -> str:
    """Of the lines that begin so, the one in this place."""
    lines = [line.strip() for line in file.read_text(encoding="ascii").splitlines()]
    found = [line for line in lines if line.startswith(begin)]
    if place >= len(found):
        raise ValueError(f"{file} has no line {begin!r}")
    return found[place]


def wire_all(
    checks: Sequence[GateCheck],
    group: Group,
    pulse: Heartbeat | None = None,
    counters: Callable[[], Reading] = loopback,
) -> list[Wired]:
    """Every check in order, on all ranks together; what this rank found."""
    pulse = pulse or Heartbeat()
    return [_wire(check, group, pulse, counters) for check in checks]


def _wire(
    check: GateCheck, group: Group, pulse: Heartbeat, counters: Callable[[], Reading]
) -> Wired:
    pulse.phase(f"{check.strategy} on {check.workload.name}")
    strategy, work = load(check.strategy), check.workload
    declined = strategy.misfit(work) or strategy.why_not(work, group.size)
    if declined:
        return Wired(declined=declined)
    work = workload_to_compare(work, group)
    links = watched(group, pulse)
    step = Step(work, strategy, links, group.device, seed=None)
    inputs, cotangent = step.random_inputs()
    for _ in range(WARM_UP):
        links.reset()
        step(inputs, cotangent)
    steps = _steps(links.sent(), group)
    links.reset()
    before = _read(group, counters)
    for _ in range(steps):
        step(inputs, cotangent)
    after = _read(group, counters)
    return Wired(
        workload=work.name,
        steps=steps,
        counted_bytes=round(_total(links.sent())),
        wire_bytes=after.sent_bytes - before.sent_bytes,
        wire_packets=after.packets - before.packets,
        resent_segments=after.resent_segments - before.resent_segments,
        namespace=after.namespace,
    )


def _steps(sent: Count, group: Group) -> int:
    """So many that ``ENOUGH_BYTES`` are sent, if each sends as much as the one at hand."""
    (busiest,) = group.largest([float(_total(sent))])
    return min(MAX_STEPS, math.ceil(ENOUGH_BYTES / max(1.0, busiest)))


def _read(group: Group, counters: Callable[[], Reading]) -> Reading:
    """While no rank sends anything: none goes on before all have read."""
    group.barrier()
    reading = counters()
    group.barrier()
    return reading


def _total(sent: Count) -> Fraction:
    return sum(sent.values(), Fraction(0))
