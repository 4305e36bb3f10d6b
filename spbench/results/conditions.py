"""What else the machine did while a launch was timed, and whether it was too much.

Each rank notes what it can see; the columns of the launch follow from the notes of all ranks.
A launch that was disturbed is kept and flagged: whoever judges decides what it is worth.
"""

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import BaseModel

from spbench.text import counted, grouped

OTHERS_SHARE = 0.1
"""Share of a machine's cores that others may use. A step waits for its slowest rank, so on a CPU a
tenth of the cores may lengthen it by more than strategies differ; an idle machine uses less."""
LEAST_WINDOW_S = 0.5
"""The kernel counts a machine's time in ticks of 10 ms on each core: over a shorter window the
time of others is mostly rounding."""
LEAST_OF_OURS = 0.9
"""Least part of the ranks' own core-seconds in those of the whole machine. The kernel's two ways of
counting differ by less; where it counts fewer it does not know (a sandbox counts 0 throughout)."""
POWER_CAP = "power cap"
"""The normal state of a GPU under full load: in the row, but not a disturbance."""
THROTTLED = {
    0x04: POWER_CAP,
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "thermal slowdown",
    0x80: "power brake",
}
"""Bits of NVML's clocks event reasons. An idle GPU and clocks that somebody set are no events."""


class Conditions(BaseModel, frozen=True):
    """The state of the machine around one rank's timed pass. None: not known."""

    hardware: str = ""
    """Facts that stay the same from run to run on one machine."""
    host: str = ""
    """Equal for ranks whose cores are the same; blank: not known."""
    cores: int | None = None
    load_average: float | None = None
    wall_s: float | None = None
    busy_s: float | None = None
    """Core-seconds that the whole machine was busy in ``wall_s``, or stolen by its hypervisor."""
    cpu_s: float | None = None
    """Core-seconds of this rank."""
    cpu_gflop_per_s: float | None = None
    """GFLOP/s of a fixed product of this rank, the median of looks behind its blocks."""
    gpu: str = ""
    """Identity of the GPU."""
    gpu_clock_mhz: float | None = None
    timed_clock_mhz: float | None = None
    silent_clock_mhz: float | None = None
    """Medians of the clock behind timed blocks, and behind silent ones."""
    gpu_power_w: float | None = None
    gpu_temperature_c: float | None = None
    gpu_throttle: list[str] | None = None
    gpu_processes: int | None = None
    """Compute processes on the GPU, this rank included. They may belong to another pid
    namespace, where this one's have other numbers: so they are counted, not recognised."""
    alloc_retries: int | None = None
    """How often the allocator emptied its cache and tried again, in the timed pass."""

    @property
    def clocks_mhz(self) -> tuple[float, float] | None:
        """The clock of the timed and of the silent steps, where both are known."""
        timed, silent = self.timed_clock_mhz, self.silent_clock_mhz
        return (timed, silent) if timed and silent else None


def as_columns(device: str, noted: Sequence[Conditions | None]) -> dict[str, Any]:
    """The columns of a launch, from the notes of its ranks in their order.

    A rank that noted nothing keeps its number; it may have been on any host. ``others_cores`` is
    that of the host of whose cores others used the largest share.
    """
    of_ranks = [conditions or Conditions() for conditions in noted]
    used = [cores for cores in map(_others, _by_host(of_ranks)) if cores is not None]
    others = max(used, key=lambda cores: cores[0] / cores[1], default=None)
    neighbours = _neighbours(of_ranks)
    causes = [cause for rank in of_ranks for cause in rank.gpu_throttle or []]
    return {
        "noisy": "; ".join(_disturbances(device, of_ranks, others, neighbours)),
        "load_average": largest(rank.load_average for rank in of_ranks),
        "others_cores": None if others is None else others[0],
        "cpu_gflop_per_s": middle(rank.cpu_gflop_per_s for rank in of_ranks),
        "gpu_clock_mhz": min(_known(rank.gpu_clock_mhz for rank in of_ranks), default=None),
        "gpu_power_w": largest(rank.gpu_power_w for rank in of_ranks),
        "gpu_temperature_c": largest(rank.gpu_temperature_c for rank in of_ranks),
        "gpu_throttle": ", ".join(dict.fromkeys(causes)),
        "gpu_neighbours": largest(neighbours),
        "hardware": ", ".join(dict.fromkeys(rank.hardware for rank in of_ranks if rank.hardware)),
        "alloc_retries": largest(rank.alloc_retries for rank in of_ranks),
        **_clocks(of_ranks),
    }


def _clocks(of_ranks: Sequence[Conditions]) -> dict[str, float]:
    """Both clocks of the rank whose clocks differ most; nothing where they are not known."""
    known = [clocks for rank in of_ranks if (clocks := rank.clocks_mhz) is not None]
    if not known:
        return {}
    timed, silent = max(known, key=lambda clocks: max(clocks) / min(clocks))
    return {"timed_clock_mhz": timed, "silent_clock_mhz": silent}


def _disturbances(
    device: str,
    of_ranks: Sequence[Conditions],
    others: tuple[float, int] | None,
    neighbours: Sequence[int | None],
) -> list[str]:
    """What disturbed the launch, in a few words each. A GPU has the number of its rank."""
    disturbances = []
    if device == "cpu" and others is not None and others[0] > OTHERS_SHARE * others[1]:
        disturbances.append(f"others used {others[0]:.1f} of {counted(others[1], 'core')}")
    for number, (rank, beside) in enumerate(zip(of_ranks, neighbours, strict=True)):
        causes = [cause for cause in rank.gpu_throttle or [] if cause != POWER_CAP]
        if causes:
            disturbances.append(f"gpu {number} throttled: {', '.join(causes)}")
        if rank.alloc_retries:
            disturbances.append(f"memory of gpu {number} was short: {rank.alloc_retries} retries")
        if beside:
            disturbances.append(f"{counted(beside, 'other process')} on gpu {number}")
    return disturbances


def _by_host(of_ranks: Sequence[Conditions]) -> list[list[Conditions]]:
    """The ranks of each host; empty if a host is not known, as its rank's work would be others'."""
    if not all(rank.host for rank in of_ranks):
        return []
    return list(grouped(of_ranks, lambda rank: rank.host).values())


def _others(of_host: Sequence[Conditions]) -> tuple[float, int] | None:
    """Cores that anything but these ranks used, and all that the host has."""
    first = of_host[0]
    ranks_s = [rank.cpu_s for rank in of_host if rank.cpu_s is not None]
    if first.wall_s is None or first.wall_s < LEAST_WINDOW_S or len(ranks_s) < len(of_host):
        return None
    if first.busy_s is None or not first.cores:
        return None
    if first.busy_s < LEAST_OF_OURS * sum(ranks_s):
        return None
    return max(0.0, first.busy_s - sum(ranks_s)) / first.wall_s, first.cores


def _neighbours(of_ranks: Sequence[Conditions]) -> list[int | None]:
    """Processes on each rank's GPU that are not ranks of this launch. None where not even its ranks
    are listed: another pid namespace, or a driver that filters."""
    ranks_on = Counter(rank.gpu for rank in of_ranks)
    return [
        None
        if rank.gpu_processes is None or rank.gpu_processes < ranks_on[rank.gpu]
        else rank.gpu_processes - ranks_on[rank.gpu]
        for rank in of_ranks
    ]


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def middle(values: Iterable[float | None]) -> float | None:
    """The median of what was measured; None without any."""
    known = _known(values)
    return statistics.median(known) if known else None


def largest(values: Iterable[float | None]) -> float | None:
    """The largest value that was measured; None without one."""
    return max(_known(values), default=None)
