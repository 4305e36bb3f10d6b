"""What one rank found when counted bytes were held against the kernel's, as it writes it."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, TypeAdapter


class Wired(BaseModel):
    """One strategy on one workload, over ``steps`` steps; blank where the strategy declines."""

    model_config = ConfigDict(frozen=True)

    declined: str = ""
    workload: str = ""
    """What was run: a reduced one of its kind where it is too large."""
    steps: int | None = None
    counted_bytes: int | None = None
    """What this rank counted, in all those steps."""
    wire_bytes: int | None = None
    """What the interface sent meanwhile, for all ranks: data, headers, whatever there was."""
    wire_packets: int | None = None
    resent_segments: int | None = None
    """Of those, what TCP sent a second time, each a packet."""
    namespace: str = ""
    """Where that interface is, as ``net:[4026531833]``."""


WIRED = TypeAdapter(list[Wired])
"""What one rank writes after a job of such checks."""
