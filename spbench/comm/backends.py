"""Which of the backends that ranks need this torch was built with."""

from __future__ import annotations

import torch.distributed as dist


def backends() -> list[str]:
    """Of gloo and nccl; none where torch was built without torch.distributed."""
    if not dist.is_available():
        return []
    there = {"gloo": dist.is_gloo_available(), "nccl": dist.is_nccl_available()}
    return [name for name, is_there in there.items() if is_there]
