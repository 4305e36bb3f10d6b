"""What ranks find that run no case: whether collectives are right, and what they take alone."""

from collections.abc import Sequence

from pydantic import BaseModel


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
    """One rank's times of all transfers, kernels and small steps."""

    rank: int
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
