"""What one rank found when ranks sent each other known numbers."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Exchange(BaseModel):
    """One collective on one group of ranks."""

    model_config = ConfigDict(frozen=True)

    name: str
    wrong: str = ""
    """How what came differs from what was to come; blank: not at all."""


class Exchanged(BaseModel):
    """All of them, on one rank."""

    model_config = ConfigDict(frozen=True)

    rank: int
    exchanges: list[Exchange]
    sent_bytes_per_s: dict[str, float] = {}
    """By operation, of a large tensor, as this rank timed it."""
