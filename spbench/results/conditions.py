"""What else the machine did while a launch was timed, and whether it was too much.

A rank notes what it can see; what that means for the launch is worked out from all of them.
A launch that was disturbed is kept and flagged: whoever judges decides what it is worth.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from spbench.text import counted

OTHERS_SHARE = 0.1
"""Of a machine's cores. A step waits for its slowest rank, so on a CPU a tenth of the cores
gone may lengthen it by more than strategies differ; what an idle machine does stays below."""
LEAST_WINDOW_S = 0.5
"""The kernel counts a machine's time in ticks of 10 ms on each core: over a shorter window what
is left for others is mostly their rounding."""
LEAST_OF_OURS = 0.9
"""A machine was busy at least with us. The kernel's two ways of counting differ by less; where it
counted fewer of our own core-seconds, it does not tell (a sandbox says 0 throughout)."""
POWER_CAP = "power cap"
"""The normal state of a GPU under full load: told, and no disturbance."""
THROTTLED = {
    0x04: POWER_CAP,
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "thermal slowdown",
    0x80: "power brake",
}
"""Bits of NVML's clocks event reasons. An idle GPU and clocks that somebody set are no events."""


class Conditions(BaseModel):
    """Around one rank's timed pass. None: not to be known here."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    hardware: str = ""
    """Of facts that stay the same from run to run on one machine."""
    host: str = ""
    """Equal for ranks whose cores are the same; blank: not to be known here."""
    cores: int | None = None
    load_average: float | None = None
    wall_s: float | None = None
    busy_s: float | None = None
    """Core-seconds that the whole machine was busy in ``wall_s``, or stolen by its hypervisor."""
    cpu_s: float | None = None
    """Core-seconds of this rank."""
    gpu: str = ""
    """Its identity."""
    gpu_clock_mhz: float | None = None
    gpu_power_w: float | None = None
    gpu_temperature_c: float | None = None
    gpu_throttle: list[str] | None = None
    gpu_processes: int | None = None
    """Compute processes on the GPU, this rank included. They may belong to another pid
    namespace, where ours have other numbers: so they are counted, not recognised."""


def as_columns(device: str, noted: Sequence[Conditions | None]) -> dict[str, Any]:
    """The columns of a launch, from what each of its ranks noted, in their order.

    A rank that noted nothing keeps its number; it may have been on any host.
    Of several hosts the one of whose cores others used the largest share is told.
    """
    of_ranks = [one or Conditions() for one in noted]
    used = [found for found in map(_others, _by_host(of_ranks)) if found is not None]
    others = max(used, key=lambda found: found[0] / found[1], default=None)
    neighbours = _neighbours(of_ranks)
    causes = [cause for one in of_ranks for cause in one.gpu_throttle or []]
    return {
        "noisy": "; ".join(_disturbances(device, of_ranks, others, neighbours)),
        "load_average": _most(one.load_average for one in of_ranks),
        "others_cores": None if others is None else others[0],
        "gpu_clock_mhz": min(_known(one.gpu_clock_mhz for one in of_ranks), default=None),
        "gpu_power_w": _most(one.gpu_power_w for one in of_ranks),
        "gpu_temperature_c": _most(one.gpu_temperature_c for one in of_ranks),
        "gpu_throttle": ", ".join(dict.fromkeys(causes)),
        "gpu_neighbours": _most(neighbours),
        "hardware": ", ".join(dict.fromkeys(one.hardware for one in of_ranks if one.hardware)),
    }


def _disturbances(
    device: str,
    of_ranks: Sequence[Conditions],
    others: tuple[float, int] | None,
    neighbours: Sequence[int | None],
) -> list[str]:
    """In a few words each. A GPU has the number of its rank."""
    said = []
    if device == "cpu" and others is not None and others[0] > OTHERS_SHARE * others[1]:
        said.append(f"others used {others[0]:.1f} of {counted(others[1], 'core')}")
    for rank, (one, beside) in enumerate(zip(of_ranks, neighbours, strict=True)):
        causes = [cause for cause in one.gpu_throttle or [] if cause != POWER_CAP]
        if causes:
            said.append(f"gpu {rank} throttled: {', '.join(causes)}")
        if beside:
            said.append(f"{beside} other {'process' if beside == 1 else 'processes'} on gpu {rank}")
    return said


def _by_host(of_ranks: Sequence[Conditions]) -> list[list[Conditions]]:
    """None while a rank's host is not known: its work would be that of others."""
    if not all(one.host for one in of_ranks):
        return []
    hosts: dict[str, list[Conditions]] = {}
    for one in of_ranks:
        hosts.setdefault(one.host, []).append(one)
    return list(hosts.values())


def _others(of_host: Sequence[Conditions]) -> tuple[float, int] | None:
    """Cores that anything but these ranks used, and all that the host has."""
    first = of_host[0]
    own_s = [one.cpu_s for one in of_host if one.cpu_s is not None]
    if first.wall_s is None or first.wall_s < LEAST_WINDOW_S or len(own_s) < len(of_host):
        return None
    if first.busy_s is None or not first.cores:
        return None
    if first.busy_s < LEAST_OF_OURS * sum(own_s):
        return None
    return max(0.0, first.busy_s - sum(own_s)) / first.wall_s, first.cores


def _neighbours(of_ranks: Sequence[Conditions]) -> list[int | None]:
    """Processes on each rank's GPU that are no rank of this launch.

    None where not even our own are listed: another pid namespace, or a driver that filters.
    """
    ours = Counter(one.gpu for one in of_ranks)
    return [
        None
        if one.gpu_processes is None or one.gpu_processes < ours[one.gpu]
        else one.gpu_processes - ours[one.gpu]
        for one in of_ranks
    ]


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _most(values: Iterable[float | None]) -> float | None:
    return max(_known(values), default=None)
