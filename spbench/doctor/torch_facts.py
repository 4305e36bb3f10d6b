"""What torch says of itself on this machine, as a process that loads it tells its parent."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class TorchFacts(BaseModel):
    """Of a torch that can be loaded."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    version: str
    cuda: str = ""
    """That it was built for; blank: for the CPU alone."""
    nccl: str = ""
    backends: list[str] = []
    """Of gloo and nccl, those that it was built with."""
    gpus: int = 0
    """That it can use."""
    troubles: list[str] = []
    """Why it cannot use GPUs, or what one of them did."""
