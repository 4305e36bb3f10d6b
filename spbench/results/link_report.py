"""What collectives alone have shown: on each rank, and as the report of ``spbench doctor --links``.

A report is a JSON file that later runs are compared with.
Reports lie in ``links/`` beside the runs. One fits a row if device, backend, number and placement
of ranks are the row's, and so is the hardware.
"""

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

from pydantic import BaseModel

from spbench.results.hand_over import read_json, write_atomically
from spbench.results.record import Record
from spbench.text import grouped
from spbench.workload.traffic import Op

FOLDER = "links"


class Exchange(BaseModel, frozen=True):
    """One collective on one group of ranks."""

    name: str
    wrong: str = ""
    """How the received numbers differ from the expected; blank: not at all."""


class Exchanged(BaseModel, frozen=True):
    """All exchanges of one rank."""

    rank: int
    exchanges: list[Exchange]
    sent_bytes_per_s: dict[str, float] = {}
    """Rate of a large tensor by operation, as this rank timed it."""


class LinkTiming(BaseModel, frozen=True):
    """One rank's times of one transfer."""

    sent_bytes: float
    """Bytes that this rank sends each time, as counted in ``comm/``."""
    ms: list[float]
    kernel_ms: list[float] = []
    """Milliseconds of the kernel between transfers; none where they follow each other."""

    @classmethod
    def joined(cls, sweeps: "Sequence[LinkTiming]") -> "LinkTiming":
        """All times of a transfer that was timed again and again."""
        times = {
            field: [time for each in sweeps for time in getattr(each, field)]
            for field in ("ms", "kernel_ms")
        }
        return cls(sent_bytes=sweeps[0].sent_bytes, **times)


class LinkTimes(BaseModel, frozen=True):
    """One rank's times of all transfers, and what is known of its link."""

    rank: int
    host: str
    backend: str
    hardware: str
    link: str
    """NVLink or the network interface; blank: not known."""
    nominal_bytes_per_s: float | None
    timings: list[LinkTiming]
    kernels_s: list[float] = []
    """Seconds of each kernel that was asked for: a median."""
    steps_s: list[float] = []
    """Seconds of each small step that was asked for, done by one rank: a median."""
    shares_s: list[float] = []
    """Seconds of the same steps as one rank of all does them, without the time of messages."""
    together_s: list[float] = []
    """Seconds of the same steps with their messages, on the slowest rank; empty: not timed."""
    launch_s: float | None = None
    """Seconds of the host for one call of a small kernel; None: no kernel was asked for."""
    cpu_gflop_per_s: float | None = None
    """GFLOP/s of a fixed product at the speed at which kernels took that long; None: a GPU."""


class LinkRow(BaseModel, frozen=True):
    """One operation at one size; times are those of the slowest rank."""

    op: Op
    gradients: bool
    """Whether it is the sum of gradients, on its own group of ranks."""
    strategies: list[str]
    """The strategies that use it at about this size."""
    sent_bytes: float
    """Bytes that the busiest rank sends."""
    ms: float
    """Median over the repeats."""
    ms_low: float
    ms_high: float
    repeats: int
    bytes_per_s: float
    """Median over the ranks of what each sends in its own median time."""
    slowest_rank: int
    slowest_bytes_per_s: float
    """Rate of the rank whose median time is the longest."""
    share_of_nominal: float | None = None
    """Achieved over nominal rate; None: not known, or several ranks share a link."""


class LinkReport(BaseModel, frozen=True):
    """All rows of one workload on one number of ranks, and where they were measured."""

    measured_utc: str
    workload: str
    device: str
    backend: str
    ranks: int
    placement: str
    """Ranks on each machine, as in a row of runs.csv; blank on one machine."""
    hosts: list[str]
    hardware: str
    torch: str
    link: str
    nominal_bytes_per_s: float | None
    rows: list[LinkRow]

    def fits(self, row: Record) -> bool:
        """Whether a launch ran on these ranks; a field that the row lacks is no obstacle."""
        exact = (self.device, self.ranks, self.placement)
        known = ((self.backend, row.backend), (self.hardware, row.hardware))
        return exact == (row.device, row.world_size, row.placement) and all(
            mine == theirs for mine, theirs in known if mine and theirs
        )

    def typical_ms(self, op: Op, sent_bytes: float) -> float | None:
        """The time of a transfer of this size, on the line between the sizes that were measured.

        A larger one has the rate of the largest. None for less than half of the smallest, where
        the time is not the links' but that of the call.
        """
        import numpy

        # Two rows of a size are those of two groups: of equal links.
        rows = grouped([row for row in self.rows if row.op == op], lambda row: row.sent_bytes)
        sizes = sorted(rows)
        if not sizes or sent_bytes < sizes[0] / 2:
            return None
        known = [statistics.mean(row.ms for row in rows[size]) for size in sizes]
        nearest = min(max(sent_bytes, sizes[0]), sizes[-1])
        return float(numpy.interp(nearest, sizes, known)) * (sent_bytes / nearest)


def keep(report: LinkReport, root: Path) -> Path:
    """Writes the report below ``root``, the folder of all runs."""
    day = report.measured_utc.replace("-", "").replace(":", "").replace("T", "-").rstrip("Z")
    path = root / FOLDER / f"{day}-{report.ranks}-ranks.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, report.model_dump_json(indent=2))
    return path


def reports_in(roots: Iterable[Path]) -> list[LinkReport]:
    """All reports below these folders, the latest first; what cannot be read is left out."""
    paths = {path.resolve() for root in roots for path in (root / FOLDER).glob("*.json")}
    reports = [report for path in paths if (report := read_json(path, LinkReport)) is not None]
    return sorted(reports, key=lambda report: report.measured_utc, reverse=True)
