"""What a rank hands to the parent of collectives alone: whether they are right, and their times."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Exchange(BaseModel):
    """One collective on one group of ranks."""

    model_config = ConfigDict(frozen=True)

    name: str
    wrong: str = ""
    """How the received numbers differ from the expected; blank: not at all."""


class Exchanged(BaseModel):
    """All exchanges of one rank."""

    model_config = ConfigDict(frozen=True)

    rank: int
    exchanges: list[Exchange]
    sent_bytes_per_s: dict[str, float] = {}
    """Rate of a large tensor by operation, as this rank timed it."""


class LinkTiming(BaseModel):
    """One rank's times of one transfer."""

    model_config = ConfigDict(frozen=True)

    sent_bytes: float
    """Bytes that this rank sends each time, as counted in ``comm/``."""
    ms: list[float]


class LinkTimes(BaseModel):
    """One rank's times of all transfers, and what is known of its link."""

    model_config = ConfigDict(frozen=True)

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
    launch_s: float | None = None
    """Seconds of the host for one call of a small kernel; None: no kernel was asked for."""
