"""Which workload the gate compares: the one that is asked for, or a small one of its kind.

One device must be able to run the whole of it, in time and memory, beside everything else.
"""

from __future__ import annotations

import psutil
import torch

from spbench.comm.group import Group
from spbench.workload.cost import forward_flops, parameters
from spbench.workload.workload import DTYPE_BYTES, Workload

GATE_FLOPS = {"cpu": 5e10, "cuda": 5e13}
"""Forward operations up to which a workload is compared whole rather than as its twin."""
GATE_MEMORY_SHARE = 0.3
LIVE_ACTIVATIONS = 16
"""Activations that autograd keeps of one sublayer, at the most; scores come on top."""


def comparable(workload: Workload, group: Group) -> Workload:
    """``workload``, or its reduced twin if it is too large for any rank's device alone."""
    (too_large,) = group.largest([float(not _fits(workload, group))])
    return workload.reduced(group.size) if too_large else workload


def _fits(workload: Workload, group: Group) -> bool:
    """Whether this rank can run the whole model alone, in time and memory, twice over."""
    if forward_flops(workload) > GATE_FLOPS[group.device.type]:
        return False
    size = max(4, DTYPE_BYTES[workload.dtype])  # the reference of 16 bits runs in 32
    longest = max((workload.length(one) for one in workload.attentions), default=0)
    scores = longest * workload.batch * workload.tokens * workload.heads * size
    activation = workload.batch * workload.tokens * workload.hidden * size
    kept = len(workload.stack) * (LIVE_ACTIVATIONS * activation + 2 * scores)
    pairs = sum(
        2 * workload.axes[axis] ** 2 * channels for axis, channels in workload.pairs.items()
    )
    needed = kept + (4 * parameters(workload).total + workload.batch * pairs) * size
    if group.device.type == "cuda":
        return needed < GATE_MEMORY_SHARE * torch.cuda.mem_get_info(group.device)[0]
    # Processes of one machine share its memory.
    return needed * group.size < GATE_MEMORY_SHARE * psutil.virtual_memory().available
