"""ColossalAI's two functions of Ring Self-Attention, with the variables that they read set."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from torch import distributed as dist

from spbench.vendors.package import patched

MODULE = "colossalai.legacy.nn.layer.parallel_sequence._operation"
NAMES = "RingQK", "RingAV"
UNDIVIDED = tuple((f"grad_{x} /= local_world_size", "pass") for x in "qkv")


def operations(group: dist.ProcessGroup, is_patched: bool) -> Any:
    """``RingQK`` and ``RingAV``; until the next call they are for the ranks of this group."""
    from colossalai.accelerator import get_accelerator, set_accelerator
    from colossalai.legacy.context.parallel_mode import ParallelMode
    from colossalai.legacy.core import global_context as own

    sequence = ParallelMode.SEQUENCE
    own.add_global_rank(ParallelMode.GLOBAL, dist.get_rank())
    own._add_local_rank(sequence, group.rank())
    own._add_world_size(sequence, group.size())
    own._add_ranks_in_group(sequence, dist.get_process_group_ranks(group))
    own._add_group(sequence, group)
    if dist.get_backend(group) == "gloo":
        set_accelerator("cpu")
        get_accelerator().synchronize = lambda *_: None
    return patched(MODULE, NAMES, UNDIVIDED) if is_patched else import_module(MODULE)
